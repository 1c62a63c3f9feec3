/* The sums at two places at once: a weight is taken apart once. */
static void $name(const row_t *w, const $type *x, const $type *z, int size, int32_t *sums)
{
    int i = 0;
#if ROW_BITS == 8 && defined(__ARM_FEATURE_SIMD32)
    int32_t first = sums[0], second = sums[1];
    for (; i + 4 <= size; i += 4) {
        uint32_t a, b, c;
        memcpy(&a, w + i, 4);
        memcpy(&b, x + i, 4);
        memcpy(&c, z + i, 4);
        const int16x2_t even = __sxtb16(a), odd = __sxtb16(a >> 8 | a << 24);
        first = __smlad(even, ${halves}(b), first);
        second = __smlad(even, ${halves}(c), second);
        first = __smlad(odd, ${halves}(b >> 8 | b << 24), first);
        second = __smlad(odd, ${halves}(c >> 8 | c << 24), second);
    }
    sums[0] = first;
    sums[1] = second;
#endif
    if (i < size) {
        sums[0] += $dot(w + i, x + i, size - i);
        sums[1] += $dot(w + i, z + i, size - i);
    }
}
