static float total(const float *x, int lines, int area, float mean, int squared)
{
    float sum = 0.0f;
    for (int n = 0; n < lines; n++) {
        float part = 0.0f;
        for (int i = 0; i < area; i++, x++) {
            const float v = *x - mean;
            part += squared ? v * v : v;
        }
        sum += part;
    }
    return sum;
}

/* y = (x - mean) / sqrt(variance + epsilon) * weight + bias over the channels of a group. */
static void group_norm(const float *x, float *y, int groups, int channels, int area, float epsilon, const float *weight,
                       const float *bias)
{
    const float size = (float)(channels * area);
    for (int g = 0; g < groups; g++) {
        const float mean = total(x, channels, area, 0.0f, 0) / size;
        const float rate = 1.0f / sqrtf(total(x, channels, area, mean, 1) / size + epsilon);
        for (int n = g * channels; n < (g + 1) * channels; n++) {
            const float scale = weight ? rate * weight[n] : rate, shift = bias ? bias[n] : 0.0f;
            for (int i = 0; i < area; i++) {
                *y++ = (*x++ - mean) * scale + shift;
            }
        }
    }
}
