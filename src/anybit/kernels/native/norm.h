// GroupNorm, alone or as ReLU(GroupNorm(x) + shortcut), each way in two passes over a group.
#pragma once

#include <cmath>

#include "vector.h"

namespace anybit {

struct NormShape {
    int64_t images, channels, pixels, groups, relu;
    double eps;
};

// d max(0, y): nothing where y is 0, as PyTorch has it; NaN passes.
INLINE Vector where_positive(Vector y, Vector g) { return y <= 0 ? Vector{} : g; }
INLINE Vector positive(Vector y) { return y < 0 ? Vector{} : y; }

// What a channel does to its pixels: x * factor + constant.
template <int N>
struct Affine {
    Vector factor[N], constant[N];

    INLINE Affine(float gamma, float beta, const Vector (&mean)[N], const Vector (&rstd)[N]) {
        UNROLL for (int v = 0; v < N; ++v) factor[v] = gamma * rstd[v], constant[v] = beta - mean[v] * factor[v];
    }
    INLINE Vector operator()(Vector x, int v) const { return x * factor[v] + constant[v]; }
};

template <int N>
void norm_forward(const NormShape& s, const float* x, const float* shortcut, const float* gamma, const float* beta, float* y,
                  float* mean, float* rstd, Slice<N> slice) {
    const int64_t inside = s.channels / s.groups, step = s.pixels * s.images;
    const float share = 1.0f / static_cast<float>(inside * s.pixels);
    for (int64_t group = 0; group < s.groups; ++group, mean += s.images, rstd += s.images) {
        Vector shift[N], total[N]{}, squares[N]{}, center[N], scale[N];
        UNROLL for (int v = 0; v < N; ++v) shift[v] = slice.get(x + group * inside * step, v);
        for (int64_t c = group * inside; c < (group + 1) * inside; ++c) {
            Vector sums[N]{}, more[N]{};  // per channel first: long float sums lose digits
            for (int64_t p = 0; p < s.pixels; ++p)
                UNROLL for (int v = 0; v < N; ++v) {
                    const Vector d = slice.get(x + c * step + p * s.images, v) - shift[v];
                    sums[v] += d;
                    more[v] += d * d;
                }
            UNROLL for (int v = 0; v < N; ++v) total[v] += sums[v], squares[v] += more[v];
        }
        UNROLL for (int v = 0; v < N; ++v) {
            const Vector off = total[v] * share, variance = positive(squares[v] * share - off * off);
            center[v] = shift[v] + off;
            for (int lane = 0; lane < LANES; ++lane)
                scale[v][lane] = 1 / std::sqrt(variance[lane] + static_cast<float>(s.eps));
            slice.put(mean, v, center[v]);
            slice.put(rstd, v, scale[v]);
        }
        for (int64_t c = group * inside; c < (group + 1) * inside; ++c) {
            const Affine<N> affine(gamma[c], beta[c], center, scale);
            for (int64_t p = 0; p < s.pixels; ++p)
                UNROLL for (int v = 0; v < N; ++v) {
                    const int64_t at = c * step + p * s.images;
                    Vector value = affine(slice.get(x + at, v), v);
                    if (shortcut) value += slice.get(shortcut + at, v);
                    slice.put(y + at, v, s.relu ? positive(value) : value);
                }
        }
    }
}

// With z the gradient behind the ReLU, and sums over the pixels of a channel, S = sum z and T = (sum z x - mean S) rstd:
// dbeta = S, dgamma = T, dx = rstd (gamma z - mean of gamma S - normalized x times mean of gamma T), means over the group.
// Without a shortcut y is computed again, which is cheaper than to read it.
template <int N>
void norm_backward(const NormShape& s, const float* g, const float* x, const float* y, const float* gamma, const float* beta,
                   const float* mean, const float* rstd, float* dx, float* dshortcut, float* dgamma, float* dbeta,
                   Slice<N> slice) {
    const int64_t inside = s.channels / s.groups, step = s.pixels * s.images;
    const float share = 1.0f / static_cast<float>(inside * s.pixels);
    const auto behind = [&](int64_t at, int v, Vector value, const Affine<N>& affine) INLINE_LAMBDA {
        const Vector gradient = slice.get(g + at, v);
        if (!s.relu) return gradient;
        return where_positive(y ? slice.get(y + at, v) : affine(value, v), gradient);
    };
    for (int64_t group = 0; group < s.groups; ++group, mean += s.images, rstd += s.images) {
        Vector center[N], scale[N], plain[N]{}, weighted[N]{};
        UNROLL for (int v = 0; v < N; ++v) center[v] = slice.get(mean, v), scale[v] = slice.get(rstd, v);
        for (int64_t c = group * inside; c < (group + 1) * inside; ++c) {
            const Affine<N> affine(gamma[c], beta[c], center, scale);
            Vector sums[N]{}, products[N]{};
            for (int64_t p = 0; p < s.pixels; ++p)
                UNROLL for (int v = 0; v < N; ++v) {
                    const int64_t at = c * step + p * s.images;
                    const Vector value = slice.get(x + at, v), z = behind(at, v, value, affine);
                    sums[v] += z;
                    products[v] += z * value;
                    if (dshortcut) slice.put(dshortcut + at, v, z);
                }
            UNROLL for (int v = 0; v < N; ++v) {
                const Vector normalized = (products[v] - center[v] * sums[v]) * scale[v];
                plain[v] += gamma[c] * sums[v];
                weighted[v] += gamma[c] * normalized;
                dbeta[c] += sum(sums[v]);
                dgamma[c] += sum(normalized);
            }
        }
        Vector slope[N], constant[N];
        UNROLL for (int v = 0; v < N; ++v) {
            slope[v] = -scale[v] * scale[v] * weighted[v] * share;
            constant[v] = -scale[v] * plain[v] * share - center[v] * slope[v];
        }
        for (int64_t c = group * inside; c < (group + 1) * inside; ++c) {
            const Affine<N> affine(gamma[c], beta[c], center, scale);
            for (int64_t p = 0; p < s.pixels; ++p)
                UNROLL for (int v = 0; v < N; ++v) {
                    const int64_t at = c * step + p * s.images;
                    const Vector value = slice.get(x + at, v);
                    const Vector z = dshortcut ? slice.get(dshortcut + at, v) : behind(at, v, value, affine);
                    slice.put(dx + at, v, affine.factor[v] * z + slope[v] * value + constant[v]);
                }
        }
    }
}

}  // namespace anybit
