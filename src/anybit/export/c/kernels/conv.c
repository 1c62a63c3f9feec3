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
