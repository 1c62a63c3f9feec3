// Max-pooling, alone or as MaxPool(ReLU(x)) = ReLU(MaxPool(x)).
#pragma once

#include "norm.h"

namespace anybit {

struct PoolShape {
    int64_t images, channels, height, width, kernel, stride, relu;
    int64_t out_height() const { return (height - kernel) / stride + 1; }
    int64_t out_width() const { return (width - kernel) / stride + 1; }
};

// work(first pixel of the window, pixel of the output, first image, how many images)
template <class Work>
void over_windows(const PoolShape& s, Work work) {
    const int64_t out_height = s.out_height(), out_width = s.out_width();
    for (int64_t c = 0; c < s.channels; ++c)
        for (int64_t i = 0; i < out_height; ++i)
            for (int64_t j = 0; j < out_width; ++j) {
                const int64_t from = ((c * s.height + i * s.stride) * s.width + j * s.stride) * s.images;
                const int64_t to = ((c * out_height + i) * out_width + j) * s.images;
                for (int64_t n = 0; n < s.images; n += LANES)
                    work(from + n, to + n, std::min<int64_t>(LANES, s.images - n));
            }
}

// The first of equal values wins, and NaN over everything: what PyTorch does. `where` is the number of the winner.
inline void pool_forward(const PoolShape& s, const float* x, float* y, float* where) {
    over_windows(s, [&](int64_t from, int64_t to, int64_t lanes) {
        Vector best = load(x + from, lanes), winner{};
        for (int64_t a = 0; a < s.kernel; ++a)
            for (int64_t b = 0; b < s.kernel; ++b) {
                const Vector value = load(x + from + (a * s.width + b) * s.images, lanes);
                const Mask better = (value > best) | (value != value);
                best = better ? value : best;
                winner = better ? broadcast(static_cast<float>(a * s.kernel + b)) : winner;
            }
        store(y + to, s.relu ? positive(best) : best, lanes);
        store(where + to, winner, lanes);
    });
}

inline void pool_backward(const PoolShape& s, const float* g, const float* y, const float* where, float* dx) {
    const bool apart = s.stride >= s.kernel;
    const bool covered = s.stride == s.kernel && s.height % s.kernel == 0 && s.width % s.kernel == 0;
    if (!covered) std::memset(dx, 0, s.channels * s.height * s.width * s.images * sizeof(float));
    over_windows(s, [&](int64_t to, int64_t from, int64_t lanes) {
        Vector value = load(g + from, lanes);
        if (s.relu) value = where_positive(load(y + from, lanes), value);
        const Vector winner = load(where + from, lanes);
        for (int64_t a = 0; a < s.kernel; ++a)
            for (int64_t b = 0; b < s.kernel; ++b) {
                float* place = dx + to + (a * s.width + b) * s.images;
                const Vector share = winner == static_cast<float>(a * s.kernel + b) ? value : Vector{};
                store(place, apart ? share : share + load(place, lanes), lanes);
            }
    });
}

}  // namespace anybit
