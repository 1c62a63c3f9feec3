// Q(x) = step * clip(round(x / step - o) + o, low, high), and its derivative: 1 where nothing is clipped, else 0.
// o is 0 where the levels are integers, 1/2 where they lie halfway between them.
#pragma once

#include <cmath>
#include <cstdint>

namespace anybit {

struct RoundShape {
    int64_t channels, size;  // a step per channel of so many values
    double low, high;
};

// Halves go to even, and NaN stays NaN: what PyTorch does.
inline void round_forward(const RoundShape& s, const float* x, const float* step, float* y, float* inside) {
    const float low = static_cast<float>(s.low), high = static_cast<float>(s.high), offset = low - std::floor(low);
    for (int64_t c = 0; c < s.channels; ++c, x += s.size, y += s.size, inside += s.size)
        for (int64_t k = 0; k < s.size; ++k) {
            const float below = std::nearbyint(x[k] / step[c] - offset);
            const float level = offset ? below + offset : below;  // -0 stays -0, which -0 + 0 is not
            const float clipped = level < low ? low : level > high ? high : level;
            y[k] = clipped * step[c];
            inside[k] = level == clipped ? 1.0f : 0.0f;
        }
}

}  // namespace anybit
