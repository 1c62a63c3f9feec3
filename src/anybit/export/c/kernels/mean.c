static void mean(const float *x, float *y, int lines, int size)
{
    for (int n = 0; n < lines; n++) {
        float sum = 0.0f;
        for (int i = 0; i < size; i++) {
            sum += *x++;
        }
        y[n] = sum / (float)size;
    }
}
