static void $name(const float *x, $type *q, int size, const grid_t *g)
{
    for (int i = 0; i < size; i++) {
        q[i] = ($type)level(x[i], g);
    }
}
