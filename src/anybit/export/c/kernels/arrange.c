/* Per group: lines of pixels of channels, with a border of zeros, so that a window is a few contiguous pieces. */
static void $name(const float *x, $type *q, const conv_t *c, const grid_t *g)
{
    const int channels = c->channels / c->groups, area = c->padded_height * c->padded_width;
    for (int i = 0; i < c->channels * area; i++) {
        q[i] = 0;
    }
#if defined(LANES) /* First many in a row, then each to its place: four channels at a time, if they have four. */
    const int planes = channels % 4 ? 1 : 4, plane = c->height * c->width;
    const grid_t grid = *g;
    $type codes[4][64] = {{0}}, zipped[64];
    for (int n = 0; n < c->channels; n += planes) {
        $type *to = q + (n / channels) * channels * area + n % channels;
        for (int iy = 0; iy < c->height; iy++) {
            $type *line = to + ((iy + c->top) * c->padded_width + c->left) * channels;
            const float *from = x + n * plane + iy * c->width;
            for (int ix = 0, count; ix < c->width; ix += count) {
                count = c->width - ix < 64 ? c->width - ix : 64;
                for (int p = 0; p < planes; p++) {
                    for (int i = 0; i < count; i++) {
                        codes[p][i] = ($type)level(from[p * plane + ix + i], &grid);
                    }
                }
                if (planes == 1) {
                    for (int i = 0; i < count; i++) {
                        line[(ix + i) * channels] = codes[0][i];
                    }
                    continue;
                }
                for (int start = 0; start < count; start += 16) {
                    const codes_t a = CODES(codes[0] + start), b = CODES(codes[1] + start);
                    const codes_t d = CODES(codes[2] + start), e = CODES(codes[3] + start);
                    STORE_CODES(zipped, ZIP_LOW_PAIRS(ZIP_LOW(a, b), ZIP_LOW(d, e)));
                    STORE_CODES(zipped + 16, ZIP_HIGH_PAIRS(ZIP_LOW(a, b), ZIP_LOW(d, e)));
                    STORE_CODES(zipped + 32, ZIP_LOW_PAIRS(ZIP_HIGH(a, b), ZIP_HIGH(d, e)));
                    STORE_CODES(zipped + 48, ZIP_HIGH_PAIRS(ZIP_HIGH(a, b), ZIP_HIGH(d, e)));
                    for (int i = 0; i < 16 && start + i < count; i++) {
                        memcpy(line + (ix + start + i) * channels, zipped + 4 * i, 4);
                    }
                }
            }
        }
    }
#else
    for (int n = 0; n < c->channels; n++) {
        $type *plane = q + (n / channels) * channels * area + n % channels;
        for (int iy = 0; iy < c->height; iy++) {
            $type *line = plane + ((iy + c->top) * c->padded_width + c->left) * channels;
            for (int ix = 0; ix < c->width; ix++) {
                line[ix * channels] = ($type)level(*x++, g);
            }
        }
    }
#endif
}
