#if defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_BIG_ENDIAN)
/* Numbers as 16-bit pairs that lie as a mask takes codes of $bits bits out of a word, one every `stride` bytes; adds them up. */
static int32_t $name(const $type *x, uint8_t *to, int words, int stride, int32_t sum)
{
    for (; words > 0; words--, x += $half) {
        for (int i = 0; i < $half; i += $step, x += $step, to += $step * stride) {
            uint32_t near, far, odd;
            memcpy(&near, x, 4);
            odd = (uint32_t)${halves}(near >> 8 | near << 24);
            near = (uint32_t)${halves}(near);
#if $half == 2
            far = odd;
            memcpy(to, &near, 4);
            memcpy(to + stride, &odd, 4);
#else
            memcpy(&far, x + $half, 4);
            const uint32_t last = (uint32_t)${halves}(far >> 8 | far << 24);
            far = (uint32_t)${halves}(far);
            sum = __smlad((int16x2_t)odd, 0x00010001, __smlad((int16x2_t)last, 0x00010001, sum));
            const uint32_t pairs[4] = {(near & 0xFFFFu) | far << 16, (odd & 0xFFFFu) | last << 16,
                                       near >> 16 | (far & 0xFFFF0000u), odd >> 16 | (last & 0xFFFF0000u)};
            memcpy(to, pairs, 4);
            memcpy(to + stride, pairs + 1, 4);
            memcpy(to + 2 * stride, pairs + 2, 4);
            memcpy(to + 3 * stride, pairs + 3, 4);
#endif
            sum = __smlad((int16x2_t)near, 0x00010001, __smlad((int16x2_t)far, 0x00010001, sum));
        }
    }
    return sum;
}
#endif
