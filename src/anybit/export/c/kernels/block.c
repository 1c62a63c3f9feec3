#if defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_BIG_ENDIAN)
/* Two rows of packed codes by $columns of pairs: one mask takes two codes out of a word, and no row is unpacked. Not inline: it
 * needs all registers. */
__attribute__((noinline)) static void $name(const uint8_t *a, const uint8_t *b, const uint8_t *x, int words, int32_t *sums)
{
    int32_t $zeros;
    uint32_t mask = $mask;
    __asm__("" : "+r"(mask)); /* In a register it is masked and shifted in one instruction, as a constant in two. */
    for (; words > 0; words--, a += 4, b += 4, x += $stride) {
        uint32_t first, second, $names;
        memcpy(&first, a, 4);
        memcpy(&second, b, 4);
$steps
    }
$results
}
#endif
