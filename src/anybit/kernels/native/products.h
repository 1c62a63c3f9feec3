// The two inner loops of everything: sums over channels for every image, and sums over images for every weight.
#pragma once

#include "vector.h"

namespace anybit {

// sums[o][v] += factors[o] * x[v]
template <int O, int N>
INLINE void multiply(const float* x, const float* factors, Slice<N> slice, Vector (&sums)[O][N]) {
    Vector value[N];
    UNROLL for (int v = 0; v < N; ++v) value[v] = slice.get(x, v);
    UNROLL for (int o = 0; o < O; ++o) {
        const Vector factor = broadcast(factors[o]);
        UNROLL for (int v = 0; v < N; ++v) sums[o][v] += factor * value[v];
    }
}

// Some products of a sum: where x lies, and which group of O factors belongs to it, both of the first channel.
struct Term {
    int64_t x, factors;
};

// The products of `channels` channels for every term.
template <int O, int N>
INLINE void multiply(const float* x, const float* factors, const std::vector<Term>& terms, int64_t channels,
                     int64_t channel_step, Slice<N> slice, Vector (&sums)[O][N]) {
    for (const Term& term : terms)
        for (int64_t c = 0; c < channels; ++c)
            multiply<O, N>(x + term.x + c * channel_step, factors + (term.factors + c) * O, slice, sums);
}

constexpr int INPUTS = VECTORS;

// sums[o][i] += sum over pieces and positions of g[o] * x[i]; pieces are `length` floats, as far apart as the steps say.
template <int O>
INLINE void correlate(const float* g, int64_t output_step, const float* const (&x)[INPUTS], int64_t pieces, int64_t g_step,
                      int64_t x_step, int64_t length, Vector (&sums)[O][INPUTS]) {
    const auto add = [&](int64_t at_g, int64_t at_x, auto get) INLINE_LAMBDA {
        Vector outputs[O];
        UNROLL for (int o = 0; o < O; ++o) outputs[o] = get(g + o * output_step + at_g);
        UNROLL for (int i = 0; i < INPUTS; ++i) {
            const Vector input = get(x[i] + at_x);
            UNROLL for (int o = 0; o < O; ++o) sums[o][i] += outputs[o] * input;
        }
    };
    for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t at_g = piece * g_step, at_x = piece * x_step;
        int64_t n = 0;
        for (; n + LANES <= length; n += LANES)
            add(at_g + n, at_x + n, [](const float* p) INLINE_LAMBDA { return load(p); });
        if (n < length) {
            const int64_t lanes = length - n;
            add(at_g + n, at_x + n, [lanes](const float* p) INLINE_LAMBDA { return load(p, lanes); });
        }
    }
}

// totals[i] += the sum of vector i.
INLINE void add_sums(const Vector (&vectors)[INPUTS], float* totals) {
#if defined(__AVX512F__)
    // All four at once, for fewer shuffles than one after another.
    const __m512 a = _mm512_unpacklo_ps(vectors[0], vectors[1]) + _mm512_unpackhi_ps(vectors[0], vectors[1]);
    const __m512 b = _mm512_unpacklo_ps(vectors[2], vectors[3]) + _mm512_unpackhi_ps(vectors[2], vectors[3]);
    const __m512 all = _mm512_shuffle_ps(a, b, 0x44) + _mm512_shuffle_ps(a, b, 0xEE);
    const __m256 half = _mm512_castps512_ps256(all) + _mm512_extractf32x8_ps(all, 1);
    _mm_storeu_ps(totals, _mm_loadu_ps(totals) + (_mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1)));
#else
    for (int i = 0; i < INPUTS; ++i) totals[i] += sum(vectors[i]);
#endif
}

}  // namespace anybit
