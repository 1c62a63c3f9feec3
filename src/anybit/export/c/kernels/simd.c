#if defined(__wasm_simd128__)
#include <wasm_simd128.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define DPBUSD _mm_dpbusd_epi32
#define DPBUSD_256 _mm256_dpbusd_epi32
#elif defined(__AVXVNNI__)
#define DPBUSD _mm_dpbusd_avx_epi32
#define DPBUSD_256 _mm256_dpbusd_avx_epi32
#endif
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__ARM_FEATURE_SIMD32)
#include <arm_acle.h>
#endif

/* Floats that a processor multiplies at a time. */
#if defined(__wasm_simd128__)
#define MANY 4
typedef v128_t many_t;
#define MANY_AT(at) wasm_v128_load(at)
#define MANY_OF(value) wasm_f32x4_splat(value)
#define STORE_MANY(to, many) wasm_v128_store(to, many)
#define MANY_PLUS(a, b) wasm_f32x4_add(a, b)
#define MANY_TIMES(a, b) wasm_f32x4_mul(a, b)
#elif defined(__AVX2__)
#define MANY 8
typedef __m256 many_t;
#define MANY_AT(at) _mm256_loadu_ps(at)
#define MANY_OF(value) _mm256_set1_ps(value)
#define STORE_MANY(to, many) _mm256_storeu_ps(to, many)
#define MANY_PLUS(a, b) _mm256_add_ps(a, b)
#define MANY_TIMES(a, b) _mm256_mul_ps(a, b)
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define MANY 4
typedef float32x4_t many_t;
#define MANY_AT(at) vld1q_f32(at)
#define MANY_OF(value) vdupq_n_f32(value)
#define STORE_MANY(to, many) vst1q_f32(to, many)
#define MANY_PLUS(a, b) vaddq_f32(a, b)
#define MANY_TIMES(a, b) vmulq_f32(a, b)
#endif

/* Where a processor adds products of bytes in lanes: LANES bytes at a time; x is unsigned or not, w is signed. */
#if defined(__AVX2__)
typedef __m256i bytes_t;
typedef __m256i sums_t;
#define NOTHING _mm256_setzero_si256()
#define ADDED(a, b, c, d) _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d))
#define STORE(to, sums) \
    _mm_storeu_si128((__m128i *)(void *)(to), _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)))
typedef __m128i codes_t;
#define CODES(at) _mm_loadu_si128((const __m128i *)(const void *)(at))
#define STORE_CODES(to, codes) _mm_storeu_si128((__m128i *)(void *)(to), codes)
#define LOW_HALVES(codes) _mm_and_si128(codes, _mm_set1_epi8(15))
#define HIGH_HALVES(codes) _mm_and_si128(_mm_srli_epi16(codes, 4), _mm_set1_epi8(15))
#define LOOKED_UP(table, halves) _mm_shuffle_epi8(table, halves)
#define ZIP_LOW(a, b) _mm_unpacklo_epi8(a, b)
#define ZIP_HIGH(a, b) _mm_unpackhi_epi8(a, b)
#define ZIP_LOW_PAIRS(a, b) _mm_unpacklo_epi16(a, b)
#define ZIP_HIGH_PAIRS(a, b) _mm_unpackhi_epi16(a, b)
typedef __m128 floats_t;
#define FLOATS(at) _mm_loadu_ps(at)
#define FLOATS_OF(value) _mm_set1_ps(value)
#define STORE_FLOATS(to, floats) _mm_storeu_ps(to, floats)
#define PLUS(a, b) _mm_add_ps(a, b)
#define MINUS(a, b) _mm_sub_ps(a, b)
#define TIMES(a, b) _mm_mul_ps(a, b)
#define FOUR_LINES(v) _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3])
#if defined(DPBUSD)
typedef int eight_t __attribute__((vector_size(32))); /* as __m256i, which is of another type, sums are copied at every step */
#define LANES 32
#define LANES_UNSIGNED 1
#define BYTES(at) _mm256_loadu_si256((const __m256i *)(const void *)(at))
#define FLIPPED(bytes) _mm256_xor_si256(bytes, _mm256_set1_epi8((char)-128))
#define PRODUCTS(sums, w, x) DPBUSD_256(sums, x, w)
#else
#define LANES 16
#define LANES_UNSIGNED 0
#define BYTES(at) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(at)))
#define FLIPPED(bytes) _mm256_xor_si256(bytes, _mm256_set1_epi16(-128))
#define PRODUCTS(sums, w, x) _mm256_add_epi32(sums, _mm256_madd_epi16(w, x))
#endif
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define LANES 16
#define LANES_UNSIGNED 0
typedef int8x16_t bytes_t;
typedef int32x4_t sums_t;
#define BYTES(at) vld1q_s8((const int8_t *)(at))
#define FLIPPED(bytes) veorq_s8(bytes, vdupq_n_s8(-128))
#define NOTHING vdupq_n_s32(0)
#define ADDED(a, b, c, d) vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d))
#define STORE(to, sums) vst1q_s32(to, sums)
typedef uint8x16_t codes_t;
#define CODES(at) vld1q_u8((const uint8_t *)(at))
#define STORE_CODES(to, codes) vst1q_u8((uint8_t *)(to), codes)
#define LOW_HALVES(codes) vandq_u8(codes, vdupq_n_u8(15))
#define HIGH_HALVES(codes) vshrq_n_u8(codes, 4)
#define LOOKED_UP(table, halves) vqtbl1q_u8(table, halves)
#define ZIP_LOW(a, b) vzip1q_u8(a, b)
#define ZIP_HIGH(a, b) vzip2q_u8(a, b)
#define ZIP_LOW_PAIRS(a, b) vreinterpretq_u8_u16(vzip1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)))
#define ZIP_HIGH_PAIRS(a, b) vreinterpretq_u8_u16(vzip2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)))
typedef float32x4_t floats_t;
#define FLOATS(at) vld1q_f32(at)
#define FLOATS_OF(value) vdupq_n_f32(value)
#define STORE_FLOATS(to, floats) vst1q_f32(to, floats)
#define PLUS(a, b) vaddq_f32(a, b)
#define MINUS(a, b) vsubq_f32(a, b)
#define TIMES(a, b) vmulq_f32(a, b)
#define FOUR_LINES(v) \
    do { \
        const float32x4x2_t low = vzipq_f32(v[0], v[2]), high = vzipq_f32(v[1], v[3]); \
        const float32x4x2_t first = vzipq_f32(low.val[0], high.val[0]), second = vzipq_f32(low.val[1], high.val[1]); \
        v[0] = first.val[0], v[1] = first.val[1], v[2] = second.val[0], v[3] = second.val[1]; \
    } while (0)
#if defined(__ARM_FEATURE_DOTPROD)
#define PRODUCTS(sums, w, x) vdotq_s32(sums, w, x)
#else
#define PRODUCTS(sums, w, x) \
    vpadalq_s16(vpadalq_s16(sums, vmull_s8(vget_low_s8(w), vget_low_s8(x))), vmull_high_s8(w, x))
#endif
#endif
