static void $name(const float *x, float *y, const $weights *w, int rows, int outputs)
{
    for (int o = 0; o < outputs; o++) {
$fetch
        for (int r = 0; r < rows; r++) {
            const float *a = x + r * w->size;
            float sum = 0.0f;
            for (int i = 0; i < w->size; i++) {
                sum += (float)values[i] * a[i];
            }
            y[r * outputs + o] = sum * scale + bias;
        }
    }
}
