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

// Which taps of one dimension meet the image at a pixel: first, first + tap_step, ... below last; the first reads `from`.
struct Side {
    int64_t first, last, from;
};

// y[o, i, j] = bias[o] + sum over c and taps of factors * x[c, pixel that the tap reads]; the next tap of a dimension reads
// `direction` pixels further. Which taps there are changes at the border only, so the list of terms is kept along a row.
template <class Down, class Right>
void gather(const float* x, int64_t channels, int64_t height, int64_t width, const float* factors, const float* bias,
            float* y, int64_t outputs, int64_t out_height, int64_t out_width, int64_t images, int64_t kernel, int64_t tap_step,
            int64_t direction, Down down, Right right) {
    const Blocks blocks(outputs);
    // A term for every channel saves a loop where there are few; where there are many the list would get long.
    const int64_t each = channels < 8 ? 1 : channels, channel_step = height * width * images;
    std::vector<Term> terms;
    for (int64_t i = 0; i < out_height; ++i) {
        const Side a = down(i);
        Side known{-1, -1, 0};
        for (int64_t j = 0; j < out_width; ++j, y += images) {
            const Side b = right(j);
            if (b.first != known.first || b.last != known.last) {
                known = b;
                terms.clear();
                for (int64_t tap = a.first, row = 0; tap < a.last; tap += tap_step, row += direction)
                    for (int64_t more = b.first, column = 0; more < b.last; more += tap_step, column += direction)
                        for (int64_t c = 0; c < channels; c += each)
                            terms.push_back({c * channel_step + (row * width + column) * images,
                                             (tap * kernel + more) * channels + c});
            }
            over_images(images, [&](auto slice, int64_t first) {
                constexpr int N = decltype(slice)::count;
                const float* from = x + (a.from * width + b.from) * images + first;
                for (int64_t number = 0; number < blocks.count; ++number)
                    with_size<OUTPUTS>(blocks.size(number), [&](auto block) {
                        constexpr int O = decltype(block)::value;
                        const int64_t start = blocks.first(number);
                        Vector sums[O][N];
                        UNROLL for (int o = 0; o < O; ++o)
                            UNROLL for (int v = 0; v < N; ++v) sums[o][v] = broadcast(bias ? bias[start + o] : 0.0f);
                        multiply<O, N>(from, factors + start * kernel * kernel * channels, terms, each, channel_step, slice,
                                       sums);
                        float* to = y + start * out_height * out_width * images + first;
                        UNROLL for (int o = 0; o < O; ++o)
                            UNROLL for (int v = 0; v < N; ++v)
                                slice.put(to + o * out_height * out_width * images, v, sums[o][v]);
                    });
            });
        }
    }
}

// y[o, i, j] = bias[o] + sum over c, a, b of w[o, c, a, b] * x[c, i * stride + a - padding, j * stride + b - padding]
inline void direct_forward(const Shape& s, const float* x, const float* w, const float* bias, float* y) {
    const auto side = [&](int64_t size) {
        return [&s, size](int64_t i) {
            const int64_t start = i * s.stride - s.padding, first = std::max<int64_t>(0, -start);
            return Side{first, std::min(s.kernel, size - start), start + first};
        };
    };
    const float* factors = packed(s.outer, s.inner, s.taps(), [&](int64_t o, int64_t c, int64_t tap) {
        return w[(o * s.inner + c) * s.taps() + tap];
    });
    gather(x, s.inner, s.height, s.width, factors, bias, y, s.outer, s.out_height(), s.out_width(), s.images, s.kernel, 1, 1,
           side(s.height), side(s.width));
}

// dx[c, row, column] = sum over o and the outputs that read the pixel of w[o, c, a, b] * dy[o, i, j]
inline void direct_grad_input(const Shape& s, const float* dy, const float* w, float* dx) {
    const auto side = [&](int64_t outputs) {
        return [&s, outputs](int64_t row) {
            const int64_t end = row + s.padding, low = std::max<int64_t>(0, end - s.stride * (outputs - 1));
            const int64_t first = low + (end - low) % s.stride;
            return Side{first, std::min(s.kernel, end + 1), (end - first) / s.stride};
        };
    };
    const float* factors = packed(s.inner, s.outer, s.taps(), [&](int64_t c, int64_t o, int64_t tap) {
        return w[(o * s.inner + c) * s.taps() + tap];
    });
    gather(dy, s.outer, s.out_height(), s.out_width(), factors, nullptr, dx, s.inner, s.height, s.width, s.images, s.kernel,
           s.stride, -1, side(s.out_height()), side(s.out_width()));
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
