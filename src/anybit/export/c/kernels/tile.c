#if defined(TILES)
/* One row as pieces of whole lanes, filled up with zeros. Returns what flipping the highest bit of every x takes from its sum. */
static uint32_t spread_$name(const weights_t *w, int number, int8_t *to, int piece, int lanes)
{
    uint32_t sum = 0;
    unpack(w, number);
    for (int start = 0; start < w->size; start += piece, to += lanes) {
        for (int i = 0; i < piece; i++) {
            to[i] = row[start + i];
            sum += (uint32_t)row[start + i];
        }
        for (int i = piece; i < lanes; i++) {
            to[i] = 0;
        }
    }
    return LANES_UNSIGNED == $unsigned ? 0u : LANES_UNSIGNED ? 0u - 128u * sum : 128u * sum;
}

/* The sums of four rows, `size` apart, at four places. */
static void $name(const int8_t *k, int size, const $type *const *at, const conv_t *c, int channels, int pieces, int lanes,
                  int32_t (*sums)[4])
{
    const $type *a = at[0], *b = at[1], *d = at[2], *e = at[3];
    sums_t s00 = NOTHING, s01 = s00, s02 = s00, s03 = s00, s10 = s00, s11 = s00, s12 = s00, s13 = s00;
    sums_t s20 = s00, s21 = s00, s22 = s00, s23 = s00, s30 = s00, s31 = s00, s32 = s00, s33 = s00;
    for (int ky = 0; ky < c->kernel_height; ky++) {
        for (int kx = 0; kx < pieces; kx++) {
            const int start = (ky * c->dilation_y * c->padded_width + kx * c->dilation_x) * channels;
            for (int i = start; i < start + lanes; i += LANES, k += LANES) {
                const bytes_t w0 = BYTES(k), w1 = BYTES(k + size), w2 = BYTES(k + 2 * size), w3 = BYTES(k + 3 * size);
#if LANES_UNSIGNED == $unsigned
                const bytes_t x0 = BYTES(a + i), x1 = BYTES(b + i), x2 = BYTES(d + i), x3 = BYTES(e + i);
#else
                const bytes_t x0 = FLIPPED(BYTES(a + i)), x1 = FLIPPED(BYTES(b + i)), x2 = FLIPPED(BYTES(d + i)),
                              x3 = FLIPPED(BYTES(e + i));
#endif
$steps
            }
        }
    }
    STORE(sums[0], ADDED(s00, s01, s02, s03));
    STORE(sums[1], ADDED(s10, s11, s12, s13));
    STORE(sums[2], ADDED(s20, s21, s22, s23));
    STORE(sums[3], ADDED(s30, s31, s32, s33));
}
#endif
