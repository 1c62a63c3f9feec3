#if defined(MANY)
/* A stride takes the input apart into planes in which the windows of neighbours are neighbours, so that lanes add the same
 * products in the same order as the plain loops below; what a border adds is 0, and the lanes behind a line are dropped. */
static void $name(const float *x, float *y, const $weights *w, const conv_t *c)
{
    const int channels = c->channels / c->groups, outputs = c->outputs / c->groups, taps = c->kernel_height * c->kernel_width;
    const int wide = (c->padded_width + c->stride_x - 1) / c->stride_x;
    const int area = (c->padded_height + c->stride_y - 1) / c->stride_y * wide, volume = c->stride_y * c->stride_x * area;
    const int span = (c->out_height - 1) * wide + c->out_width;
    for (int i = 0; i < c->channels * volume; i++) {
        planes[i] = 0.0f;
    }
    for (int n = 0; n < c->channels; n++) {
        for (int iy = c->top; iy < c->height + c->top; iy++) {
            float *line = planes + n * volume + iy % c->stride_y * c->stride_x * area + iy / c->stride_y * wide;
            for (int ix = c->left; ix < c->width + c->left; ix++) {
                line[ix % c->stride_x * area + ix / c->stride_x] = *x++;
            }
        }
    }
    for (int i = 0; i < taps; i++) {
        const int ky = i / c->kernel_width * c->dilation_y, kx = i % c->kernel_width * c->dilation_x;
        starts[i] = (ky % c->stride_y * c->stride_x + kx % c->stride_x) * area + ky / c->stride_y * wide + kx / c->stride_x;
    }
    for (int o = 0; o < c->outputs; o++) {
        const float *first = planes + (o / outputs) * channels * volume;
        int column = 0;
$fetch
        for (int p = 0; p < span; p += 4 * MANY) {
            const $type *k = values;
            const int few = span - p <= 2 * MANY;
            float done[4 * MANY];
            many_t a = MANY_OF(0.0f), b = a, d = a, e = a;
            for (int n = 0; n < channels; n++) {
                for (int i = 0; i < taps; i++) {
                    const float *at = first + n * volume + starts[i] + p;
                    const many_t value = MANY_OF((float)*k++);
                    a = MANY_PLUS(a, MANY_TIMES(value, MANY_AT(at)));
                    b = MANY_PLUS(b, MANY_TIMES(value, MANY_AT(at + MANY)));
                    if (!few) {
                        d = MANY_PLUS(d, MANY_TIMES(value, MANY_AT(at + 2 * MANY)));
                        e = MANY_PLUS(e, MANY_TIMES(value, MANY_AT(at + 3 * MANY)));
                    }
                }
            }
            STORE_MANY(done, a);
            STORE_MANY(done + MANY, b);
            STORE_MANY(done + 2 * MANY, d);
            STORE_MANY(done + 3 * MANY, e);
            for (int i = 0; i < 4 * MANY && p + i < span; i++) {
                if (column < c->out_width) {
                    *y++ = done[i] * scale + bias;
                }
                column = column + 1 == wide ? 0 : column + 1;
            }
        }
    }
}
#else
/* Adds one weight at a time to a line of outputs: no copy of the input, no borders. */
static void $name(const float *x, float *y, const $weights *w, const conv_t *c)
{
    const int channels = c->channels / c->groups, outputs = c->outputs / c->groups;
    for (int o = 0; o < c->outputs; o++) {
        const float *first = x + (o / outputs) * channels * c->height * c->width;
$fetch
        for (int oy = 0; oy < c->out_height; oy++, y += c->out_width) {
            const $type *k = values;
            for (int i = 0; i < c->out_width; i++) {
                y[i] = 0.0f;
            }
            for (int n = 0; n < channels; n++) {
                for (int ky = 0; ky < c->kernel_height; ky++) {
                    const int iy = oy * c->stride_y + ky * c->dilation_y - c->top;
                    if (iy < 0 || iy >= c->height) {
                        k += c->kernel_width;
                        continue;
                    }
                    const float *line = first + (n * c->height + iy) * c->width;
                    for (int kx = 0; kx < c->kernel_width; kx++) {
                        const float value = (float)*k++;
                        const int shift = kx * c->dilation_x - c->left;
                        int from = 0, to = c->out_width;
                        if (shift < 0) {
                            from = (c->stride_x - 1 - shift) / c->stride_x;
                        }
                        if (shift + (to - 1) * c->stride_x >= c->width) {
                            to = shift >= c->width ? 0 : (c->width - 1 - shift) / c->stride_x + 1;
                        }
                        for (int i = from; i < to; i++) {
                            y[i] += value * line[shift + i * c->stride_x];
                        }
                    }
                }
            }
            for (int i = 0; i < c->out_width; i++) {
                y[i] = y[i] * scale + bias;
            }
        }
    }
}
#endif
