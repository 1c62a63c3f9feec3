static int32_t $name(const row_t *w, const $type *x, int size)
{
    int32_t sum = 0;
    for (int i = 0; i < size; i++) {
        sum += (int32_t)w[i] * (int32_t)x[i];
    }
    return sum;
}
