/* Over the middle of outer * size * inner. */
static void softmax(const float *x, float *y, int outer, int size, int inner, int logarithm)
{
    for (int o = 0; o < outer * inner; o++) {
        const int at = o / inner * size * inner + o % inner;
        float top = x[at], sum = 0.0f;
        for (int i = 1; i < size; i++) {
            top = x[at + i * inner] > top ? x[at + i * inner] : top;
        }
        for (int i = 0; i < size; i++) {
            sum += expf(x[at + i * inner] - top);
        }
        for (int i = 0; i < size; i++) {
            const float v = x[at + i * inner] - top;
            y[at + i * inner] = logarithm ? v - logf(sum) : expf(v) / sum;
        }
    }
}
