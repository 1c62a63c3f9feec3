/* The row holds height * width * channels, as the input does. */
static void $name(const $type *x, float *y, const weights_t *w, const conv_t *c$extra)
{
$ignored    const int channels = c->channels / c->groups, outputs = c->outputs / c->groups;
    const int area = c->padded_height * c->padded_width * channels;
    const int piece = c->dilation_x == 1 ? c->kernel_width * channels : channels;
    const int pieces = c->dilation_x == 1 ? 1 : c->kernel_width;
    for (int o = 0; o < c->outputs; o++) {
        const $type *group = x + (o / outputs) * area;
        const float scale = w->scale[w->per_row ? o : 0], bias = w->bias ? w->bias[o] : 0.0f;
        unpack(w, o);
        for (int oy = 0; oy < c->out_height; oy++) {
            for (int ox = 0; ox < c->out_width; ox += 2) {
                const row_t *k = row;
                const int two = ox + 1 < c->out_width;
                int32_t sums[2] = {0, 0};
                for (int ky = 0; ky < c->kernel_height; ky++) {
                    const int iy = oy * c->stride_y + ky * c->dilation_y;
                    const $type *line = group + (iy * c->padded_width + ox * c->stride_x) * channels;
                    for (int kx = 0; kx < pieces; kx++, k += piece) {
                        const $type *at = line + kx * c->dilation_x * channels;
                        if (two) {
                            $pair(k, at, at + c->stride_x * channels, piece, sums);
                        } else {
                            sums[0] += $dot(k, at, piece);
                        }
                    }
                }
                *y++ = (float)sums[0] * scale + bias;
                if (two) {
                    *y++ = (float)sums[1] * scale + bias;
                }
            }
        }
    }
}
