static float total(const float *x, int lines, int area, float mean, int squared)
{
    float sum = 0.0f;
    int n = 0;
#if defined(FOUR_LINES) /* Four lines in the lanes, which add in the order of the plain loop. */
    for (; n + 4 <= lines && area % 4 == 0; n += 4, x += 4 * area) {
        float parts[4];
        floats_t part = FLOATS_OF(0.0f);
        const floats_t from = FLOATS_OF(mean);
        for (int i = 0; i < area; i += 4) {
            floats_t v[4] = {FLOATS(x + i), FLOATS(x + area + i), FLOATS(x + 2 * area + i), FLOATS(x + 3 * area + i)};
            FOUR_LINES(v);
            for (int j = 0; j < 4; j++) {
                const floats_t d = MINUS(v[j], from);
                part = PLUS(part, squared ? TIMES(d, d) : d);
            }
        }
        STORE_FLOATS(parts, part);
        for (int line = 0; line < 4; line++) {
            sum += parts[line];
        }
    }
#endif
    for (; n < lines; n++) {
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
