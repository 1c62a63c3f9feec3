/* Of different shapes: a stride of 0 repeats a value. */
static void $name(const float *a, const float *b, float *y, const int *size, const int *stride_a, const int *stride_b)
{
    for (int i = 0; i < size[0]; i++) {
        for (int j = 0; j < size[1]; j++) {
            for (int k = 0; k < size[2]; k++) {
                for (int n = 0; n < size[3]; n++) {
                    const float u = a[i * stride_a[0] + j * stride_a[1] + k * stride_a[2] + n * stride_a[3]];
                    const float v = b[i * stride_b[0] + j * stride_b[1] + k * stride_b[2] + n * stride_b[3]];
                    *y++ = u $sign v;
                }
            }
        }
    }
}
