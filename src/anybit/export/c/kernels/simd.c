#if defined(__wasm_simd128__)
#include <wasm_simd128.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define DPBUSD _mm_dpbusd_epi32
#elif defined(__AVXVNNI__)
#define DPBUSD _mm_dpbusd_avx_epi32
#endif
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__ARM_FEATURE_SIMD32)
#include <arm_acle.h>
#endif
