/* On the grid, and back in float. */
static void rounded(const float *x, float *y, int size, const grid_t *g)
{
    for (int i = 0; i < size; i++) {
        y[i] = (float)level(x[i], g) * (g->step / (float)g->factor);
    }
}
