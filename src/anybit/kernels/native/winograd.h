// 3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3): 36 products for 16 outputs of a tile in place of 144.
//
// With V = B'xB of a 6x6 tile of the input and U = GwG':  y = A'(U * V)A  and  dw = G'(V * (A dy A'))G, where products
// are elementwise and sums over channels (images and tiles) are taken before the last transform. The gradient by the
// input is the convolution of dy with the flipped weights. (Lavin and Gray 2016, points 0, 1, -1, 2, -2.)
#pragma once

#include "direct.h"

namespace anybit {

constexpr int64_t TILE = 4, SIDE = 6, PLACES = SIDE * SIDE;

// B' of one line.
struct ToInput {
    INLINE void operator()(const Vector (&x)[SIDE], Vector (&to)[SIDE]) const {
        const Vector even = x[4] - 4 * x[2], odd = x[3] - 4 * x[1], near = x[4] - x[2], far = 2 * (x[3] - x[1]);
        to[0] = 4 * x[0] - 5 * x[2] + x[4];
        to[1] = even + odd;
        to[2] = even - odd;
        to[3] = near + far;
        to[4] = near - far;
        to[5] = 4 * x[1] - 5 * x[3] + x[5];
    }
};

// A' of one line.
struct ToOutput {
    INLINE void operator()(const Vector (&m)[SIDE], Vector (&to)[TILE]) const {
        const Vector near = m[1] + m[2], nearer = m[1] - m[2], far = m[3] + m[4], farther = m[3] - m[4];
        to[0] = m[0] + near + far;
        to[1] = nearer + 2 * farther;
        to[2] = near + 4 * far;
        to[3] = nearer + 8 * farther + m[5];
    }
};

// A of one line.
struct FromOutput {
    INLINE void operator()(const Vector (&g)[TILE], Vector (&to)[SIDE]) const {
        const Vector even = g[0] + g[2], odd = g[1] + g[3], far = g[0] + 4 * g[2], farther = 2 * g[1] + 8 * g[3];
        to[0] = g[0];
        to[1] = even + odd;
        to[2] = even - odd;
        to[3] = far + farther;
        to[4] = far - farther;
        to[5] = g[3];
    }
};

// G of one line of a filter.
struct FromFilter {
    INLINE void operator()(const Vector (&w)[3], Vector (&to)[SIDE]) const {
        const Vector outside = (w[0] + w[2]) * (-1 / 6.f), middle = w[1] * (1 / 6.f);
        const Vector far = w[0] * (1 / 24.f) + w[2] * (1 / 6.f), farther = w[1] * (1 / 12.f);
        to[0] = w[0] * (1 / 4.f);
        to[1] = outside - middle;
        to[2] = outside + middle;
        to[3] = far + farther;
        to[4] = far - farther;
        to[5] = w[2];
    }
};

// G' of one line.
struct ToFilter {
    INLINE void operator()(const Vector (&s)[SIDE], Vector (&to)[3]) const {
        const Vector near = (s[1] + s[2]) * (1 / 6.f), far = s[3] + s[4];
        to[0] = s[0] * (1 / 4.f) - near + far * (1 / 24.f);
        to[1] = (s[2] - s[1]) * (1 / 6.f) + (s[3] - s[4]) * (1 / 12.f);
        to[2] = far * (1 / 6.f) - near + s[5];
    }
};

// Both dimensions of FROM x FROM values, which lie as far apart as the steps say; put(i, row) takes TO rows of TO.
template <int FROM, int TO, class Line, class Put>
INLINE void both(const float* from, int64_t row_step, int64_t column_step, int64_t lanes, Line line, Put put) {
    Vector half[TO][FROM];
    ROLLED for (int j = 0; j < FROM; ++j, from += column_step) {
        Vector column[FROM], turned[TO];
        UNROLL for (int i = 0; i < FROM; ++i) column[i] = load(from + i * row_step, lanes);
        line(column, turned);
        UNROLL for (int i = 0; i < TO; ++i) half[i][j] = turned[i];
    }
    ROLLED for (int i = 0; i < TO; ++i) {
        Vector row[TO];
        line(half[i], row);
        put(i, row);
    }
}

INLINE int64_t whole_vectors(int64_t images) { return (images + LANES - 1) / LANES * LANES; }

// An image cut into tiles of FROM x FROM pixels, TILE apart, the first one starting `before` the image; zeros outside.
struct Tiles {
    int64_t height, width, images, right, before;

    // V (or A dy A') of tiles [start, start + count) of some images: to[place][tile][channel][image].
    template <int FROM, class Line>
    void transform(const float* x, int64_t channels, int64_t start, int64_t count, int64_t some, float* to,
                   int64_t place_step, Line line) const {
        const int64_t length = whole_vectors(some);
        float window[FROM * FROM * IMAGES];
        for (int64_t c = 0; c < channels; ++c, x += height * width * images)
            for (int64_t t = 0; t < count; ++t) {
                const int64_t top = (start + t) / right * TILE - before, left = (start + t) % right * TILE - before;
                const bool inside = top >= 0 && left >= 0 && top + FROM <= height && left + FROM <= width;
                if (!inside) copy<FROM>(x, top, left, some, window);
                const float* from = inside ? x + (top * width + left) * images : window;
                const int64_t column_step = inside ? images : IMAGES, row_step = inside ? width * images : FROM * IMAGES;
                for (int64_t n = 0; n < some; n += LANES) {
                    float* place = to + (t * channels + c) * length + n;
                    both<FROM, SIDE>(from + n, row_step, column_step, std::min<int64_t>(LANES, some - n), line,
                                     [&](int, const Vector (&row)[SIDE]) INLINE_LAMBDA {
                        UNROLL for (int j = 0; j < SIDE; ++j) store(place + j * place_step, row[j]);
                        place += SIDE * place_step;
                    });
                }
            }
    }

    template <int FROM>
    void copy(const float* x, int64_t top, int64_t left, int64_t some, float* to) const {
        for (int64_t row = top; row < top + FROM; ++row)
            for (int64_t column = left; column < left + FROM; ++column, to += IMAGES) {
                const bool inside = row >= 0 && row < height && column >= 0 && column < width;
                for (int64_t n = 0; n < some; n += LANES) {
                    const int64_t lanes = std::min<int64_t>(LANES, some - n);
                    store(to + n, inside ? load(x + (row * width + column) * images + n, lanes) : Vector{});
                }
            }
    }
};

// GwG' of all filters, packed as factors[block of outputs][place][channel][output]; at(output, channel, tap) is the weight.
template <class At>
const float* filters(int64_t outputs, int64_t channels, At at) {
    float* factors = scratch<struct Packed>(outputs * channels * PLACES);
    float* taps = scratch<struct Taps>(9 * OUTPUTS * channels + LANES);
    const Blocks blocks(outputs);
    for (int64_t b = 0; b < blocks.count; ++b) {
        const int64_t start = blocks.first(b), size = blocks.size(b), many = size * channels;
        for (int64_t tap = 0; tap < 9; ++tap)
            for (int64_t c = 0; c < channels; ++c)
                for (int64_t o = 0; o < size; ++o) taps[tap * many + c * size + o] = at(start + o, c, tap);
        float* to = factors + start * channels * PLACES;
        for (int64_t n = 0; n < many; n += LANES) {
            const int64_t lanes = std::min<int64_t>(LANES, many - n);
            both<3, SIDE>(taps + n, 3 * many, many, lanes, FromFilter{}, [&](int i, const Vector (&row)[SIDE]) INLINE_LAMBDA {
                UNROLL for (int j = 0; j < SIDE; ++j) store(to + (i * SIDE + j) * many + n, row[j], lanes);
            });
        }
    }
    return factors;
}

// out[place][tile] = factors[place] times in[place][tile].
template <int N>
void multiply_places(Slice<N>, const float* in, int64_t in_place, int64_t channels, const float* factors, float* out,
                     int64_t out_place, int64_t outputs, int64_t tiles) {
    constexpr int64_t LENGTH = N * LANES;
    const Blocks blocks(outputs);
    for (int64_t place = 0; place < PLACES; ++place)
        for (int64_t b = 0; b < blocks.count; ++b)
            with_size<OUTPUTS>(blocks.size(b), [&](auto block) {
                constexpr int O = decltype(block)::value;
                const int64_t start = blocks.first(b);
                for (int64_t t = 0; t < tiles; ++t) {
                    const float* x = in + place * in_place + t * channels * LENGTH;
                    const float* u = factors + (start * PLACES + place * O) * channels;
                    float* to = out + place * out_place + (t * outputs + start) * LENGTH;
                    Vector sums[O][N]{};
                    for (int64_t c = 0; c < channels; ++c)
                        multiply<O, N>(x + c * LENGTH, u + c * O, Slice<N>{LANES}, sums);
                    UNROLL for (int o = 0; o < O; ++o)
                        UNROLL for (int v = 0; v < N; ++v) store(to + o * LENGTH + v * LANES, sums[o][v]);
                }
            });
}

// A'mA + bias of tiles [start, start + count), as far as they lie inside the image.
inline void finish(const float* m, int64_t place_step, const float* bias, float* y, int64_t outputs, const Tiles& in,
                   int64_t start, int64_t count, int64_t some) {
    const int64_t length = whole_vectors(some);
    for (int64_t o = 0; o < outputs; ++o, y += in.height * in.width * in.images)
        for (int64_t t = 0; t < count; ++t) {
            const int64_t top = (start + t) / in.right * TILE, left = (start + t) % in.right * TILE;
            const int64_t rows = in.height - top, columns = in.width - left;
            const Vector more = broadcast(bias ? bias[o] : 0.0f);
            for (int64_t n = 0; n < some; n += LANES) {
                const int64_t lanes = std::min<int64_t>(LANES, some - n);
                const float* from = m + (t * outputs + o) * length + n;
                float* to = y + (top * in.width + left) * in.images + n;
                both<SIDE, TILE>(from, SIDE * place_step, place_step, LANES, ToOutput{},
                                 [&](int i, const Vector (&row)[TILE]) INLINE_LAMBDA {
                    UNROLL for (int j = 0; j < TILE; ++j)
                        if (i < rows && j < columns) store(to + (i * in.width + j) * in.images, row[j] + more, lanes);
                });
            }
        }
}

constexpr int64_t NEAR = 600 << 10;  // bytes of transformed tiles that are multiplied at once

// y = bias + x convolved with the weights that at(output, channel, tap) gives.
template <class At>
void winograd(int64_t images, int64_t channels, int64_t height, int64_t width, int64_t outputs, int64_t padding,
              const float* x, const float* bias, float* y, At at) {
    const int64_t out_height = height + 2 * padding - 2, out_width = width + 2 * padding - 2;
    const float* factors = filters(outputs, channels, at);
    const int64_t right = (out_width + TILE - 1) / TILE, all = (out_height + TILE - 1) / TILE * right;
    const Tiles in_tiles{height, width, images, right, padding}, out_tiles{out_height, out_width, images, right, 0};
    for (int64_t first = 0; first < images; first += IMAGES) {
        const int64_t some = std::min(IMAGES, images - first), length = whole_vectors(some);
        const int64_t chunk = std::clamp<int64_t>(NEAR / (PLACES * (channels + outputs) * length * 4), 1, all);
        const int64_t in_place = chunk * channels * length + LANES, out_place = chunk * outputs * length + LANES;
        float* in = scratch<struct In>(PLACES * in_place);
        float* out = scratch<struct Out>(PLACES * out_place);
        for (int64_t start = 0; start < all; start += chunk) {
            const int64_t count = std::min(chunk, all - start);
            in_tiles.transform<SIDE>(x + first, channels, start, count, some, in, in_place, ToInput{});
            with_slice(some, [&](auto slice) {
                multiply_places(slice, in, in_place, channels, factors, out, out_place, outputs, count);
            });
            finish(out, out_place, bias, y + first, outputs, out_tiles, start, count, some);
        }
    }
}

inline void winograd_grad_weight(const Shape& s, const float* x, const float* dy, float* dw) {
    const int64_t out_height = s.out_height(), out_width = s.out_width();
    const int64_t right = (out_width + TILE - 1) / TILE, all = (out_height + TILE - 1) / TILE * right;
    const Tiles in_tiles{s.height, s.width, s.images, right, s.padding};
    const Tiles out_tiles{out_height, out_width, s.images, right, 0};
    const int64_t inner = (s.inner + INPUTS - 1) / INPUTS * INPUTS;
    const Blocks blocks(s.outer);
    const int64_t many = s.outer * inner;
    float* totals = scratch<struct Sums>(many * PLACES + LANES);
    std::memset(totals, 0, (many * PLACES + LANES) * sizeof(float));
    for (int64_t first = 0; first < s.images; first += IMAGES) {
        const int64_t some = std::min(IMAGES, s.images - first), length = whole_vectors(some);
        const int64_t chunk = std::min(all, std::max<int64_t>(2, 2 * NEAR / (PLACES * (s.inner + s.outer) * length * 4)));
        const int64_t in_place = chunk * s.inner * length + LANES, out_place = chunk * s.outer * length + LANES;
        float* in = scratch<struct In>(PLACES * in_place);
        float* out = scratch<struct Out>(PLACES * out_place);
        for (int64_t start = 0; start < all; start += chunk) {
            const int64_t count = std::min(chunk, all - start);
            in_tiles.transform<SIDE>(x + first, s.inner, start, count, some, in, in_place, ToInput{});
            out_tiles.transform<TILE>(dy + first, s.outer, start, count, some, out, out_place, FromOutput{});
            for (int64_t place = 0; place < PLACES; ++place)
                for (int64_t b = 0; b < blocks.count; ++b)
                    with_size<OUTPUTS>(blocks.size(b), [&](auto block) {
                        constexpr int O = decltype(block)::value;
                        for (int64_t c = 0; c < s.inner; c += INPUTS) {
                            const float* from[INPUTS];
                            for (int i = 0; i < INPUTS; ++i)
                                from[i] = in + place * in_place + std::min(c + i, s.inner - 1) * length;
                            Vector sums[O][INPUTS]{};
                            correlate<O>(out + place * out_place + blocks.first(b) * length, length, from, count,
                                         s.outer * length, s.inner * length, length, sums);
                            UNROLL for (int o = 0; o < O; ++o)
                                add_sums(sums[o], totals + (place * s.outer + blocks.first(b) + o) * inner + c);
                        }
                    });
        }
    }
    for (int64_t n = 0; n < many; n += LANES) {
        float taps[9][LANES];
        both<SIDE, 3>(totals + n, SIDE * many, many, LANES, ToFilter{}, [&](int i, const Vector (&row)[3]) INLINE_LAMBDA {
            UNROLL for (int j = 0; j < 3; ++j) store(taps[i * 3 + j], row[j]);
        });
        for (int64_t lane = 0; lane < LANES; ++lane) {
            const int64_t o = (n + lane) / inner, c = (n + lane) % inner;
            for (int64_t tap = 0; o < s.outer && c < s.inner && tap < 9; ++tap)
                dw[(o * s.inner + c) * 9 + tap] = taps[tap][lane];
        }
    }
}

}  // namespace anybit
