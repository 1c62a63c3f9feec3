static void $name(const float *x, float *y, int size$parameters)
{
    for (int i = 0; i < size; i++) {
        const float v = x[i];
        y[i] = $expression;
    }
}
