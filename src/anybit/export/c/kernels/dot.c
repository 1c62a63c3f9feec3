/* A sum of products; integers, so that every way of adding them gives the same. */
static int32_t $name(const row_t *w, const $type *x, int size)
{
    int32_t sum = 0;
    int i = 0;
#if ROW_BITS == 8 && defined(__wasm_simd128__)
    v128_t sums = wasm_i32x4_splat(0);
    for (; i + 16 <= size; i += 16) {
        const v128_t a = wasm_v128_load(w + i), b = wasm_v128_load(x + i);
        sums = wasm_i32x4_add(sums, wasm_i32x4_dot_i16x8(wasm_i16x8_extend_low_i8x16(a), wasm_${i}16x8_extend_low_${i}8x16(b)));
        sums = wasm_i32x4_add(sums, wasm_i32x4_dot_i16x8(wasm_i16x8_extend_high_i8x16(a), wasm_${i}16x8_extend_high_${i}8x16(b)));
    }
    sum = wasm_i32x4_extract_lane(sums, 0) + wasm_i32x4_extract_lane(sums, 1) + wasm_i32x4_extract_lane(sums, 2) +
          wasm_i32x4_extract_lane(sums, 3);
#elif ROW_BITS == 8 && defined(DPBUSD)
    __m128i sums = _mm_setzero_si128();
    for (; i + 16 <= size; i += 16) {
        const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(w + i));
        const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(x + i));
#if $up /* It takes unsigned by signed bytes: b + $up is unsigned, and $up times the weights is taken away. */
        const __m128i up = _mm_set1_epi8((char)$up);
        sums = _mm_sub_epi32(DPBUSD(sums, _mm_xor_si128(b, up), a), DPBUSD(_mm_setzero_si128(), up, a));
#else
        sums = DPBUSD(sums, b, a);
#endif
    }
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4E));
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xB1));
    sum = _mm_cvtsi128_si32(sums);
#elif ROW_BITS == 8 && defined(__AVX2__)
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
