/* One channel per group, as of depthwise convolutions: too few numbers in a line for many products at once. */
static void $name(const $type *x, float *y, const weights_t *w, const conv_t *c)
{
    const int outputs = c->outputs / c->groups, across = c->kernel_width, down = c->kernel_height, dilation = c->dilation_x;
    const int below = c->dilation_y * c->padded_width;
    for (int o = 0; o < c->outputs; o++) {
        const $type *plane = x + (o / outputs) * c->padded_height * c->padded_width;
        const float scale = w->scale[w->per_row ? o : 0], bias = w->bias ? w->bias[o] : 0.0f;
        unpack(w, o);
        for (int oy = 0; oy < c->out_height; oy++) {
            for (int ox = 0; ox < c->out_width; ox += 2) {
                const int next = ox + 1 < c->out_width ? c->stride_x : 0;
                const $type *line = plane + oy * c->stride_y * c->padded_width + ox * c->stride_x;
                const row_t *k = row;
                int32_t first = 0, second = 0;
                for (int ky = 0; ky < down; ky++, line += below) {
                    const $type *at = line;
                    for (int kx = 0; kx < across; kx++, at += dilation) {
                        const int weight = *k++;
                        first += weight * at[0];
                        second += weight * at[next];
                    }
                }
                *y++ = (float)first * scale + bias;
                if (next) {
                    *y++ = (float)second * scale + bias;
                }
            }
        }
    }
}
