/* A sum of products; integers, so that every way of adding them gives the same. */
static int32_t $name(const row_t *w, const $type *x, int size)
{
    int32_t sum = 0;
    int i = 0;
#if ROW_BITS == 8 && defined(__AVX2__)
    __m256i sums = _mm256_setzero_si256();
    for (; i + 16 <= size; i += 16) {
        const __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(w + i)));
        const __m256i b = _mm256_cvtep${i}8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(x + i)));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
    }
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1));
    sum = _mm_cvtsi128_si32(half);
#elif ROW_BITS == 8 && defined(__aarch64__) && defined($neon)
    int32x4_t sums = vdupq_n_s32(0);
    for (; i + 16 <= size; i += 16) {
        sums = $vdot;
    }
    sum = vaddvq_s32(sums);
#elif ROW_BITS == 8 && defined(__ARM_FEATURE_SIMD32)
    for (; i + 4 <= size; i += 4) {
        uint32_t a, b;
        memcpy(&a, w + i, 4);
        memcpy(&b, x + i, 4);
        sum = __smlad(__sxtb16(a), ${halves}(b), sum);
        sum = __smlad(__sxtb16(a >> 8 | a << 24), ${halves}(b >> 8 | b << 24), sum);
    }
#else
    for (; i + 4 <= size; i += 4) {
        sum += w[i] * x[i] + w[i + 1] * x[i + 1] + w[i + 2] * x[i + 2] + w[i + 3] * x[i + 3];
    }
#endif
    for (; i < size; i++) {
        sum += w[i] * x[i];
    }
    return sum;
}
