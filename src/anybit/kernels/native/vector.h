// Vectors of images: memory has the image last, so that everything runs over the batch and no shape is too small.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define ROLLED _Pragma("GCC unroll 1")

namespace anybit {

// OUTPUTS x VECTORS accumulators, the vectors they are multiplied with and one factor fill the registers.
#if defined(__AVX512F__)
constexpr int LANES = 16, VECTORS = 4;
#elif defined(__AVX__)
constexpr int LANES = 8, VECTORS = 2;
#elif defined(__aarch64__)
constexpr int LANES = 4, VECTORS = 4;
#else
constexpr int LANES = 4, VECTORS = 2;
#endif
constexpr int OUTPUTS = 6;
constexpr int64_t IMAGES = LANES * VECTORS;

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef float Unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(LANES * 4)));

INLINE Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
INLINE void store(float* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }
INLINE Vector broadcast(float value) { return value - Vector{}; }

// The first `lanes` of a vector, zeros behind them.
INLINE Vector load(const float* from, int64_t lanes) {
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << lanes) - 1), from);
#else
    if (lanes == LANES) return load(from);
    Vector value{};
    std::memcpy(&value, from, lanes * sizeof(float));
    return value;
#endif
}

INLINE void store(float* to, Vector value, int64_t lanes) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << lanes) - 1), value);
#else
    if (lanes == LANES) return store(to, value);
    std::memcpy(to, &value, lanes * sizeof(float));
#endif
}

INLINE float sum(Vector value) {
    float total = 0;
    for (int lane = 0; lane < LANES; ++lane) total += value[lane];
    return total;
}

// N vectors of images, the last of which has `lanes` of them.
template <int N>
struct Slice {
    static constexpr int count = N;
    int64_t lanes;

    INLINE Vector get(const float* from, int number) const {
        return number < N - 1 ? load(from + number * LANES) : load(from + number * LANES, lanes);
    }
    INLINE void put(float* to, int number, Vector value) const {
        number < N - 1 ? store(to + number * LANES, value) : store(to + number * LANES, value, lanes);
    }
};

template <int N = VECTORS, class Work>
void with_slice(int64_t images, Work work) {
    if constexpr (N > 1) {
        if (images <= (N - 1) * LANES) return with_slice<N - 1>(images, work);
    }
    work(Slice<N>{images - (N - 1) * LANES});
}

// work(slice, first image) for the whole batch.
template <class Work>
void over_images(int64_t images, Work work) {
    for (int64_t first = 0; first < images; first += IMAGES)
        with_slice(std::min(images - first, IMAGES), [&](auto slice) { work(slice, first); });
}

// Calls work with an integral constant between 1 and MOST.
template <int MOST, class Work>
void with_size(int64_t size, Work work) {
    if constexpr (MOST > 1) {
        if (size < MOST) return with_size<MOST - 1>(size, work);
    }
    work(std::integral_constant<int, MOST>{});
}

// Outputs in blocks of nearly the same size, none above OUTPUTS.
struct Blocks {
    int64_t total, count;
    explicit Blocks(int64_t total) : total(total), count((total + OUTPUTS - 1) / OUTPUTS) {}
    int64_t first(int64_t block) const { return block * total / count; }
    int64_t size(int64_t block) const { return first(block + 1) - first(block); }
};

// Memory that a thread keeps between calls. In large pages: transforms write to more places at once than a processor
// keeps addresses of small ones.
struct Memory {
    float* data = nullptr;
    int64_t size = 0;

    ~Memory() { std::free(data); }
    float* of(int64_t floats) {
        if (floats > size) {
            std::free(data);
            size = (floats * 4 + PAGE - 1) / PAGE * PAGE / 4;
            data = static_cast<float*>(std::aligned_alloc(PAGE, size * 4));
            if (data == nullptr) throw std::bad_alloc();
#if defined(__linux__)
            madvise(data, size * 4, MADV_HUGEPAGE);
#endif
        }
        return data;
    }
    static constexpr int64_t PAGE = 1 << 21;
};

template <class Owner>
float* scratch(int64_t floats) {
    static thread_local Memory memory;
    return memory.of(floats);
}

}  // namespace anybit
