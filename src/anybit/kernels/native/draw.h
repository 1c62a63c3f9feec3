// U[0, 1) by position: the hash of anybit/randomness.py, in one pass.
#pragma once

#include <cstdint>

namespace anybit {

struct Draw {
    int64_t count, key, step, site;
};

inline uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x21F0AAADu;
    x = (x ^ (x >> 15)) * 0x735A2D97u;
    return x ^ (x >> 15);
}

inline void draw(const Draw& d, float* u) {
    const uint32_t place = static_cast<uint32_t>(d.step) ^ static_cast<uint32_t>(d.site) * 0x9E3779B1u;
    const uint32_t lane = mix(static_cast<uint32_t>(d.key) ^ mix(place)), high = static_cast<uint32_t>(d.key >> 32);
    for (int64_t k = 0; k < d.count; ++k)
        u[k] = static_cast<float>(static_cast<int32_t>(mix(mix(static_cast<uint32_t>(k) ^ lane) ^ high) >> 8)) * 0x1p-24f;
}

}  // namespace anybit
