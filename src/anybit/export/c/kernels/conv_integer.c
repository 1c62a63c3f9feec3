/* The row holds height * width * channels, as the input does. */
static void $name(const $type *x, float *y, const weights_t *w, const conv_t *c)
{
    const int channels = c->channels / c->groups, outputs = c->outputs / c->groups;
    const int area = c->padded_height * c->padded_width * channels;
    const int piece = c->dilation_x == 1 ? c->kernel_width * channels : channels;
    const int pieces = c->dilation_x == 1 ? 1 : c->kernel_width;
    for (int o = 0; o < c->outputs; o++) {
        const $type *group = x + (o / outputs) * area;
        const float scale = w->scale[w->per_row ? o : 0], bias = w->bias ? w->bias[o] : 0.0f;
        unpack(w, o);
        for (int oy = 0; oy < c->out_height; oy++) {
            for (int ox = 0; ox < c->out_width; ox++) {
                const row_t *k = row;
                int32_t sum = 0;
                for (int ky = 0; ky < c->kernel_height; ky++) {
                    const int iy = oy * c->stride_y + ky * c->dilation_y;
                    const $type *line = group + (iy * c->padded_width + ox * c->stride_x) * channels;
                    for (int kx = 0; kx < pieces; kx++, k += piece) {
                        sum += $dot(k, line + kx * c->dilation_x * channels, piece);
                    }
                }
                *y++ = (float)sum * scale + bias;
            }
        }
    }
}
