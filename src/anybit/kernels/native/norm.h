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
            Vector factor[N], constant[N];
            UNROLL for (int v = 0; v < N; ++v) factor[v] = gamma[c] * scale[v], constant[v] = beta[c] - center[v] * factor[v];
            for (int64_t p = 0; p < s.pixels; ++p)
                UNROLL for (int v = 0; v < N; ++v) {
                    const int64_t at = c * step + p * s.images;
                    Vector value = slice.get(x + at, v) * factor[v] + constant[v];
                    if (shortcut) value += slice.get(shortcut + at, v);
                    slice.put(y + at, v, s.relu ? positive(value) : value);
                }
        }
    }
}

// With z the gradient behind the ReLU, and sums over the pixels of a channel, S = sum z and T = (sum z x - mean S) rstd:
// dbeta = S, dgamma = T, dx = rstd (gamma z - mean of gamma S - normalized x times mean of gamma T), means over the group.
template <int N>
void norm_backward(const NormShape& s, const float* g, const float* x, const float* y, const float* gamma, const float* mean,
                   const float* rstd, float* dx, float* dshortcut, float* dgamma, float* dbeta, Slice<N> slice) {
    const int64_t inside = s.channels / s.groups, step = s.pixels * s.images;
    const float share = 1.0f / static_cast<float>(inside * s.pixels);
    const auto behind = [&](int64_t at, int v) INLINE_LAMBDA {
        const Vector value = slice.get(g + at, v);
        return s.relu ? where_positive(slice.get(y + at, v), value) : value;
    };
    for (int64_t group = 0; group < s.groups; ++group, mean += s.images, rstd += s.images) {
        Vector center[N], scale[N], plain[N]{}, weighted[N]{};
        UNROLL for (int v = 0; v < N; ++v) center[v] = slice.get(mean, v), scale[v] = slice.get(rstd, v);
        for (int64_t c = group * inside; c < (group + 1) * inside; ++c) {
            Vector sums[N]{}, products[N]{};
            for (int64_t p = 0; p < s.pixels; ++p)
                UNROLL for (int v = 0; v < N; ++v) {
                    const int64_t at = c * step + p * s.images;
                    const Vector z = behind(at, v);
                    sums[v] += z;
                    products[v] += z * slice.get(x + at, v);
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
        for (int64_t c = group * inside; c < (group + 1) * inside; ++c)
            for (int64_t p = 0; p < s.pixels; ++p)
                UNROLL for (int v = 0; v < N; ++v) {
                    const int64_t at = c * step + p * s.images;
                    const Vector z = dshortcut ? slice.get(dshortcut + at, v) : behind(at, v);
                    slice.put(dx + at, v, gamma[c] * scale[v] * z + slope[v] * slice.get(x + at, v) + constant[v]);
                }
    }
}

}  // namespace anybit
