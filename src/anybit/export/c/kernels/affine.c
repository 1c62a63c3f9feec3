static void affine(const float *x, float *y, int channels, int area, const float *scale, const float *shift)
{
    for (int n = 0; n < channels; n++) {
        for (int i = 0; i < area; i++, x++) {
            *y++ = *x * scale[n] + shift[n];
        }
    }
}
