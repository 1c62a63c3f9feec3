/* Per group: lines of pixels of channels, with a border of zeros, so that a window is a few contiguous pieces. */
static void $name(const float *x, $type *q, const conv_t *c, const grid_t *g)
{
    const int channels = c->channels / c->groups, area = c->padded_height * c->padded_width;
    for (int i = 0; i < c->channels * area; i++) {
        q[i] = 0;
    }
    for (int n = 0; n < c->channels; n++) {
        $type *plane = q + (n / channels) * channels * area + n % channels;
        for (int iy = 0; iy < c->height; iy++) {
            $type *line = plane + ((iy + c->top) * c->padded_width + c->left) * channels;
#if defined(LANES) /* First many in a row, then each to its place. */
            const grid_t grid = *g;
            $type codes[64];
            for (int ix = 0, count; ix < c->width; ix += count, x += count) {
                count = c->width - ix < 64 ? c->width - ix : 64;
                for (int i = 0; i < count; i++) {
                    codes[i] = ($type)level(x[i], &grid);
                }
                for (int i = 0; i < count; i++) {
                    line[(ix + i) * channels] = codes[i];
                }
            }
#else
            for (int ix = 0; ix < c->width; ix++) {
                line[ix * channels] = ($type)level(*x++, g);
            }
#endif
        }
    }
}
