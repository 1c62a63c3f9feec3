// Convolutions of any kernel, stride and padding, as they are defined.
#pragma once

#include "products.h"

namespace anybit {

struct Shape {
    int64_t images, inner, height, width, outer, kernel, stride, padding;
    int64_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
    int64_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
    int64_t taps() const { return kernel * kernel; }
};

// factors[block of outputs][tap][channel][output of the block]; at(output, channel, tap) is the weight.
template <class At>
const float* packed(int64_t outputs, int64_t channels, int64_t taps, At at) {
    float* to = scratch<struct Packed>(outputs * channels * taps);
    const Blocks blocks(outputs);
    for (int64_t b = 0, next = 0; b < blocks.count; ++b)
        for (int64_t tap = 0; tap < taps; ++tap)
            for (int64_t c = 0; c < channels; ++c)
                for (int64_t o = 0; o < blocks.size(b); ++o) to[next++] = at(blocks.first(b) + o, c, tap);
    return to;
}

// y[o] = bias[o] + sum over the taps of one pixel; `reads` lists (tap, pixel) of them.
struct Read {
    int64_t tap, pixel;
};

inline void pixel(const float* x, const float* factors, const float* bias, float* y, const std::vector<Read>& reads,
                  int64_t outputs, int64_t channels, int64_t taps, int64_t images, int64_t in_step, int64_t out_step,
                  std::vector<Tap>& list) {
    const Blocks blocks(outputs);
    over_images(images, [&](auto slice, int64_t first) {
        constexpr int N = decltype(slice)::count;
        for (int64_t b = 0; b < blocks.count; ++b) {
            const int64_t start = blocks.first(b), size = blocks.size(b);
            list.clear();
            for (const Read& read : reads)
                list.push_back({x + read.pixel * images + first,
                                factors + (start * taps + read.tap * size) * channels});
            with_size<OUTPUTS>(size, [&](auto block) {
                constexpr int O = decltype(block)::value;
                Vector sums[O][N];
                UNROLL for (int o = 0; o < O; ++o)
                    UNROLL for (int v = 0; v < N; ++v) sums[o][v] = broadcast(bias ? bias[start + o] : 0.0f);
                multiply<O, N>(list.data(), list.size(), channels, in_step, slice, sums);
                UNROLL for (int o = 0; o < O; ++o)
                    UNROLL for (int v = 0; v < N; ++v) slice.put(y + (start + o) * out_step + first, v, sums[o][v]);
            });
        }
    });
}

// y[o, i, j] = bias[o] + sum over c, a, b of w[o, c, a, b] * x[c, i * stride + a - padding, j * stride + b - padding]
inline void direct_forward(const Shape& s, const float* x, const float* w, const float* bias, float* y) {
    const int64_t out_height = s.out_height(), out_width = s.out_width(), taps = s.taps();
    const float* factors = packed(s.outer, s.inner, taps, [&](int64_t o, int64_t c, int64_t tap) {
        return w[(o * s.inner + c) * taps + tap];
    });
    std::vector<Read> reads;
    std::vector<Tap> list;
    for (int64_t i = 0; i < out_height; ++i)
        for (int64_t j = 0; j < out_width; ++j) {
            reads.clear();
            for (int64_t a = 0; a < s.kernel; ++a)
                for (int64_t b = 0; b < s.kernel; ++b) {
                    const int64_t row = i * s.stride + a - s.padding, column = j * s.stride + b - s.padding;
                    if (row >= 0 && row < s.height && column >= 0 && column < s.width)
                        reads.push_back({a * s.kernel + b, row * s.width + column});
                }
            pixel(x, factors, bias, y + (i * out_width + j) * s.images, reads, s.outer, s.inner, taps, s.images,
                  s.height * s.width * s.images, out_height * out_width * s.images, list);
        }
}

// dx[c, row, column] = sum over o and the outputs that read the pixel of w[o, c, a, b] * dy[o, i, j]
inline void direct_grad_input(const Shape& s, const float* dy, const float* w, float* dx) {
    const int64_t out_height = s.out_height(), out_width = s.out_width(), taps = s.taps();
    const float* factors = packed(s.inner, s.outer, taps, [&](int64_t c, int64_t o, int64_t tap) {
        return w[(o * s.inner + c) * taps + tap];
    });
    std::vector<Read> reads;
    std::vector<Tap> list;
    for (int64_t row = 0; row < s.height; ++row)
        for (int64_t column = 0; column < s.width; ++column) {
            reads.clear();
            for (int64_t a = 0; a < s.kernel; ++a)
                for (int64_t b = 0; b < s.kernel; ++b) {
                    const int64_t down = row + s.padding - a, right = column + s.padding - b;
                    if (down >= 0 && right >= 0 && down % s.stride == 0 && right % s.stride == 0 &&
                        down / s.stride < out_height && right / s.stride < out_width)
                        reads.push_back({a * s.kernel + b, down / s.stride * out_width + right / s.stride});
                }
            pixel(dy, factors, nullptr, dx + (row * s.width + column) * s.images, reads, s.inner, s.outer, taps, s.images,
                  out_height * out_width * s.images, s.height * s.width * s.images, list);
        }
}

// x with its border of zeros, so that every tap reads whole rows.
inline const float* bordered(const Shape& s, const float* x) {
    if (s.padding == 0) return x;
    const int64_t border = s.padding * s.images, row = s.width * s.images, wide = row + 2 * border;
    float* start = scratch<struct Bordered>(s.inner * (s.height + 2 * s.padding) * wide);
    float* to = start;
    const auto zeros = [&](int64_t floats) { std::fill_n(to, floats, 0.0f), to += floats; };
    for (int64_t c = 0; c < s.inner; ++c) {
        zeros(s.padding * wide);
        for (int64_t i = 0; i < s.height; ++i, x += row) {
            zeros(border);
            to = std::copy_n(x, row, to);
            zeros(border);
        }
        zeros(s.padding * wide);
    }
    return start;
}

constexpr int64_t CLOSE = 1 << 16;  // bytes of outputs that stay in the nearest cache while the taps go over them

// dw[o, c, a, b] = sum over i, j and images of dy[o, i, j] * x[c, i * stride + a - padding, j * stride + b - padding]
inline void direct_grad_weight(const Shape& s, const float* x, const float* dy, float* dw) {
    const int64_t out_height = s.out_height(), out_width = s.out_width(), taps = s.taps(), all = s.inner * taps;
    const int64_t height = s.height + 2 * s.padding, width = s.width + 2 * s.padding;
    const int64_t out_row = out_width * s.images, out_step = out_height * out_row;
    const int64_t rows = std::max<int64_t>(1, CLOSE / (OUTPUTS * out_row * 4));
    const int64_t groups = (all + INPUTS - 1) / INPUTS, block_size = OUTPUTS * INPUTS * LANES;
    const Blocks blocks(s.outer);
    x = bordered(s, x);
    float* totals = scratch<struct Totals>(blocks.count * groups * block_size);
    std::memset(totals, 0, blocks.count * groups * block_size * sizeof(float));
    for (int64_t top = 0; top < out_height; top += rows) {
        const int64_t bottom = std::min(top + rows, out_height);
        for (int64_t b = 0; b < blocks.count; ++b)
            with_size<OUTPUTS>(blocks.size(b), [&](auto block) {
                constexpr int O = decltype(block)::value;
                for (int64_t group = 0; group < groups; ++group) {
                    const float* from[INPUTS];
                    for (int i = 0; i < INPUTS; ++i) {
                        const int64_t input = std::min(group * INPUTS + i, all - 1), tap = input % taps;
                        from[i] = x + ((input / taps * height + tap / s.kernel) * width + tap % s.kernel) * s.images;
                    }
                    auto kept = reinterpret_cast<Vector(*)[O][INPUTS]>(totals + (b * groups + group) * block_size);
                    Vector sums[O][INPUTS];
                    std::memcpy(&sums, kept, sizeof sums);
                    for (int64_t i = top; i < bottom; ++i) {
                        const float* row[INPUTS];
                        for (int n = 0; n < INPUTS; ++n) row[n] = from[n] + i * s.stride * width * s.images;
                        const float* g = dy + blocks.first(b) * out_step + i * out_row;
                        const bool whole = s.stride == 1;
                        correlate<O>(g, out_step, row, whole ? 1 : out_width, s.images, s.stride * s.images,
                                     whole ? out_row : s.images, sums);
                    }
                    std::memcpy(kept, &sums, sizeof sums);
                }
            });
    }
    for (int64_t b = 0; b < blocks.count; ++b)
        for (int64_t o = 0; o < blocks.size(b); ++o)
            for (int64_t input = 0; input < all; ++input) {
                Vector value;
                const int64_t group = b * groups + input / INPUTS;
                std::memcpy(&value, totals + group * block_size + (o * INPUTS + input % INPUTS) * LANES, sizeof value);
                dw[(blocks.first(b) + o) * all + input] = sum(value);
            }
}

}  // namespace anybit
