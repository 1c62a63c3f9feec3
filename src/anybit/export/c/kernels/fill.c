static void fill(float *y, int size, float value)
{
    for (int i = 0; i < size; i++) {
        y[i] = value;
    }
}
