#if defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_BIG_ENDIAN)
/* Two outputs at two places at a time: columns are the windows there, and codes stay packed. */
static void $name(const $type *x, float *y, const weights_t *w, const conv_t *c, uint8_t *columns)
{
    const int channels = c->channels / c->groups, outputs = c->outputs / c->groups, area = c->out_height * c->out_width;
    const int piece = c->dilation_x == 1 ? c->kernel_width * channels : channels;
    const int pieces = c->dilation_x == 1 ? 1 : c->kernel_width;
    const int length = (w->size * $bits + 7) / 8, words = (length + 3) / 4;
    $type *flat = ($type *)(columns + words * $stride);
    (void)unpack;
    (void)$spare;
    for (int i = w->size; i < words * $codes; i++) {
        flat[i] = 0;
    }
    for (int o = 0; o < c->outputs; o += outputs, x += c->padded_height * c->padded_width * channels) {
        for (int p = 0; p < area; p += 2) {
            const int places = p + 1 < area ? 2 : 1;
            int32_t totals[2] = {0, 0};
            for (int i = 0; i < places; i++) {
                const int oy = (p + i) / c->out_width, ox = (p + i) % c->out_width;
                const $type *window = x + (oy * c->stride_y * c->padded_width + ox * c->stride_x) * channels;
                $type *end = flat;
                uint8_t *to = columns + 4 * i;
                for (int ky = 0; ky < c->kernel_height; ky++) {
                    for (int kx = 0; kx < pieces; kx++) {
                        const $type *at = window + (ky * c->dilation_y * c->padded_width + kx * c->dilation_x) * channels;
                        if (piece % $codes == 0) {
                            totals[i] = $pairs(at, to, piece / $codes, 8, totals[i]);
                            to += piece / $codes * $stride;
                        } else {
                            for (int n = 0; n < piece; n++) {
                                *end++ = at[n];
                            }
                        }
                    }
                }
                if (end != flat) {
                    totals[i] = $pairs(flat, to, words, 8, 0);
                }
            }
            for (int row = o; row < o + outputs; row += 2) {
                const int rows = row + 1 < o + outputs ? 2 : 1;
                const uint8_t *codes = w->codes + (size_t)row * (size_t)length;
                int32_t sums[4];
                $block(codes, codes + (rows - 1) * length, columns, words, sums);
                for (int r = row; r < row + rows; r++) {
                    const float scale = w->scale[w->per_row ? r : 0], bias = w->bias ? w->bias[r] : 0.0f;
                    for (int i = 0; i < places; i++) {
                        y[r * area + p + i] = (float)(w->factor * sums[(r - row) * 2 + i] + w->low * totals[i]) * scale + bias;
                    }
                }
            }
        }
    }
}
#else
$other
#endif
