/* The row holds height * width * channels, as the input does. */
static void $name(const $type *x, float *y, const weights_t *w, const conv_t *c$extra)
{
$ignored    const int channels = c->channels / c->groups, outputs = c->outputs / c->groups;
    const int area = c->padded_height * c->padded_width * channels;
    const int piece = c->dilation_x == 1 ? c->kernel_width * channels : channels;
    const int pieces = c->dilation_x == 1 ? 1 : c->kernel_width;
#if defined(TILES)
    const int lanes = (piece + LANES - 1) / LANES * LANES, size = c->kernel_height * pieces * lanes;
    (void)$pair;
#if defined(WIDE)
    if (outputs >= 8) {
        $wide(x, y, w, c);
        return;
    }
#endif
    for (int o = 0, rows; o < c->outputs; o += rows) {
        const $type *group = x + (o / outputs) * area;
        uint32_t flipped[4];
        rows = outputs - o % outputs < 4 ? outputs - o % outputs : 4;
        for (int r = 0; r < 4; r++) {
            flipped[r] = spread_$tile(w, o + (r < rows ? r : 0), tiles + r * size, piece, lanes);
        }
        for (int oy = 0; oy < c->out_height; oy++) {
            const $type *line = group + oy * c->stride_y * c->padded_width * channels;
            for (int ox = 0; ox < c->out_width; ox += 4) {
                const int places = c->out_width - ox < 4 ? c->out_width - ox : 4;
                const $type *at[4];
                int32_t sums[4][4];
                for (int i = 0; i < 4; i++) {
                    at[i] = line + (ox + (i < places ? i : 0)) * c->stride_x * channels;
                }
                $tile(tiles, size, at, c, channels, pieces, lanes, sums);
                for (int r = 0; r < rows; r++) {
                    const float scale = w->scale[w->per_row ? o + r : 0], bias = w->bias ? w->bias[o + r] : 0.0f;
                    float *to = y + ((o + r) * c->out_height + oy) * c->out_width + ox, done[4];
                    for (int i = 0; i < 4; i++) {
                        done[i] = (float)(int32_t)((uint32_t)sums[r][i] + flipped[r]) * scale + bias;
                    }
                    if (places == 4) {
                        memcpy(to, done, sizeof done);
                    } else {
                        for (int i = 0; i < places; i++) {
                            to[i] = done[i];
                        }
                    }
                }
            }
        }
    }
#else
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
#endif
}
