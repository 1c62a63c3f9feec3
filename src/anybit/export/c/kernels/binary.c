static void $name(const float *a, const float *b, float *y, int size)
{
    for (int i = 0; i < size; i++) {
        y[i] = a[i] $sign b[i];
    }
}
