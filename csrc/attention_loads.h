// The products inside paged attention, and the loads of K and V from the cache for them.
#pragma once

#include "byte_floats.h"
#include "kernels.h"
#include "transpose.h"
#include "vec.h"
#include "vec_math.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kSplit = 256;
constexpr int64_t kGroupVectors = kGroup / kLanes;
constexpr int64_t kMaxRows = 48;  // (query, head) pairs of a tile

// Register blocks: sums of kBlockRows x kBlockVectors, and the operands beside them.
constexpr int64_t kBlockRows = kWidth == 16 ? 8 : 6;
constexpr int64_t kBlockVectors = kWidth == 16 ? 2 : 1;

constexpr int64_t kAhead = 2 * kGroup;  // how far ahead of use keys are prefetched
constexpr int kSecondLevel = 2;         // the cache they go to

constexpr float kInfinity = __builtin_inff();

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t clamp(int64_t value, int64_t low, int64_t high) { return smaller(greater(value, low), high); }
inline int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// ---- The one inner loop -------------------------------------------------------------------------------------------

// Elements are floats, or words of two neighbours in bfloat16, the first in the low half.
struct Matrix {
    const float* data;
    int64_t stride;
};

#if defined(__AVX512BF16__)

constexpr bool kHasPairs = true;

// Per lane, a's two numbers times b's two, added to the sum. (What is subnormal counts as zero.)
MOTET_INLINE f32x16 dot_pairs(const f32x16& a, const f32x16& b, f32x16 sum) {
    sum.part[0] = _mm512_dpbf16_ps(sum.part[0], bit_cast<__m512bh>(a.part[0]), bit_cast<__m512bh>(b.part[0]));
    return sum;
}

#else

constexpr bool kHasPairs = false;

MOTET_INLINE f32x16 dot_pairs(const f32x16&, const f32x16&, const f32x16& sum) { return sum; }

#endif

// out[r] = out[r] * factors[r] + sum over k in [begin, end) of a[r][k] * b[k], in order of k; without factors, out[r]
// starts at 0. of_pairs: what the elements are.
// Unrolled by pragma, or GCC leaves some of the sums in memory.
template <bool of_pairs, int64_t kRows, int64_t kVectors>
void accumulate_block(float* out, int64_t out_stride, const float* factors, Matrix a, Matrix b, int64_t begin,
                      int64_t end) {
    f32x16 sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < kVectors; ++v) {
            sums[r][v] = factors ? load(out + r * out_stride + v * kLanes) * factors[r] : broadcast(0.0f);
        }
    }
    for (int64_t k = begin; k < end; ++k) {
        f32x16 right[kVectors];
#pragma GCC unroll 8
        for (int64_t v = 0; v < kVectors; ++v) right[v] = load(b.data + k * b.stride + v * kLanes);
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) {
            const f32x16 left = broadcast(a.data[r * a.stride + k]);
#pragma GCC unroll 8
            for (int64_t v = 0; v < kVectors; ++v) {
                sums[r][v] = of_pairs ? dot_pairs(left, right[v], sums[r][v]) : fma(left, right[v], sums[r][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < kVectors; ++v) store(out + r * out_stride + v * kLanes, sums[r][v]);
    }
}

template <bool of_pairs, int64_t kRows>
void accumulate_rows(int64_t num_rows, int64_t num_vectors, float* out, int64_t out_stride, const float* factors, Matrix a,
                Matrix b, int64_t begin, int64_t end) {
    if constexpr (kRows > 1) {
        if (num_rows < kRows) {
            return accumulate_rows<of_pairs, kRows - 1>(num_rows, num_vectors, out, out_stride, factors, a, b, begin, end);
        }
    }
    int64_t v = 0;
    for (; v + kBlockVectors <= num_vectors; v += kBlockVectors) {
        const Matrix right = {b.data + v * kLanes, b.stride};
        accumulate_block<of_pairs, kRows, kBlockVectors>(out + v * kLanes, out_stride, factors, a, right, begin, end);
    }
    for (; v < num_vectors; ++v) {
        const Matrix right = {b.data + v * kLanes, b.stride};
        accumulate_block<of_pairs, kRows, 1>(out + v * kLanes, out_stride, factors, a, right, begin, end);
    }
}

// Of up to kBlockRows rows.
void accumulate(bool of_pairs, int64_t num_rows, int64_t num_vectors, float* out, int64_t out_stride,
                const float* factors, Matrix a, Matrix b, int64_t begin, int64_t end) {
    if (kHasPairs && of_pairs) {
        return accumulate_rows<kHasPairs, kBlockRows>(num_rows, num_vectors, out, out_stride, factors, a, b, begin, end);
    }
    return accumulate_rows<false, kBlockRows>(num_rows, num_vectors, out, out_stride, factors, a, b, begin, end);
}

// ---- Loads: cache to float ----------------------------------------------------------------------------------------

// kWidth keys by sixteen columns, given as one f32x16 per key, to rows of columns.
template <class StoreColumn>
MOTET_INLINE void transpose_keys(const f32x16 (&keys)[kWidth], const StoreColumn& store_column) {
    for (int64_t p = 0; p < kParts; ++p) {
        f32_part square[kWidth];
        for (int64_t i = 0; i < kWidth; ++i) square[i] = keys[i].part[p];
        transpose(square);
        for (int64_t i = 0; i < kWidth; ++i) store_column(p * kWidth + i, square[i]);
    }
}

// Sixteen words of small neighbours.
template <class T>
MOTET_INLINE f32x16 load_words(const T* numbers) {
    f32x16 words;
    std::memcpy(&words, numbers, sizeof(words));
    return words;
}

// The first `count` numbers, zero behind them.
template <class T>
f32x16 load_words(const T* numbers, int64_t count) {
    T padded[sizeof(f32x16) / sizeof(T)] = {};
    std::memcpy(padded, numbers, size_t(count) * sizeof(T));
    return load_words(padded);
}

template <class T>
constexpr int64_t kPerWord = 4 / int64_t(sizeof(T));

// Small neighbours move as one word, which is less work. `count` dimensions from d on, at most sixteen words of them, of
// keys[kGroup], null where there is none: store(first, column, words) for each column of words and each kWidth keys.
template <class T, class Store>
MOTET_INLINE void transpose_words(const T* const* keys, int64_t d, int64_t count, const Store& store) {
    for (int64_t first = 0; first < kGroup; first += kWidth) {
        f32x16 words[kWidth];
        for (int64_t i = 0; i < kWidth; ++i) {
            const T* key = keys[first + i];
            const bool is_whole = count == kLanes * kPerWord<T>;
            words[i] = !key ? broadcast(0.0f) : is_whole ? load_words(key + d) : load_words(key + d, count);
        }
        transpose_keys(words, [&](int64_t column, f32_part word) {
            if (column * kPerWord<T> < count) store(first, column, bit_cast<u32_part>(word));
        });
    }
}

// Whole words of keys to float. Returns how many dimensions are done.
template <class T>
int64_t load_key_words(float* out, const T* const* keys, const float* scales, int64_t head_size) {
    int64_t d = 0;
    if constexpr (kIsScaled<T>) {
        constexpr int64_t kStep = kLanes * kPerWord<T>;
        for (; d + kStep <= head_size; d += kStep) {
            transpose_words(keys, d, kStep, [&](int64_t first, int64_t column, u32_part word) {
                f32_part scale;
                std::memcpy(&scale, scales + first, sizeof(scale));
                float* row = out + (d + 4 * column) * kGroup + first;
                for (int j = 0; j < 4; ++j) {
                    const f32_part floats = from_top_byte<T>(word << (24 - 8 * j)) * scale;
                    std::memcpy(row + j * kGroup, &floats, sizeof(floats));
                }
            });
        }
    }
    return d;
}

int64_t load_key_words(float* out, const bf16* const* keys, const float*, int64_t head_size) {
    constexpr int64_t kStep = kLanes * kPerWord<bf16>;
    int64_t d = 0;
    for (; d + kStep <= head_size; d += kStep) {
        transpose_words(keys, d, kStep, [&](int64_t first, int64_t column, u32_part word) {
            const u32_part even = word << 16, odd = word & 0xffff0000u;
            float* row = out + (d + 2 * column) * kGroup + first;
            std::memcpy(row, &even, sizeof(even));
            std::memcpy(row + kGroup, &odd, sizeof(odd));
        });
    }
    return d;
}

// keys[kGroup], null where there is none, to out [head_size, kGroup]. scales[kGroup]: of a type that has them.
template <class T>
void load_keys(float* out, const T* const* keys, const float* scales, int64_t head_size) {
    for (int64_t d = load_key_words(out, keys, scales, head_size); d < head_size; d += kLanes) {
        const int64_t rest = smaller(kLanes, head_size - d);
        for (int64_t first = 0; first < kGroup; first += kWidth) {
            f32x16 block[kWidth];
            for (int64_t i = 0; i < kWidth; ++i) {
                const T* key = keys[first + i];
                block[i] = !key ? broadcast(0.0f) : rest == kLanes ? load(key + d) : load_first(key + d, rest);
            }
            transpose_keys(block, [&](int64_t column, f32_part floats) {
                if constexpr (kIsScaled<T>) {
                    f32_part scale;
                    std::memcpy(&scale, scales + first, sizeof(scale));
                    floats *= scale;
                }
                if (column < rest) std::memcpy(out + (d + column) * kGroup + first, &floats, sizeof(floats));
            });
        }
    }
}

// The same to words of two dimensions, [head_size / 2 rounded up, kGroup].
void load_keys_as_pairs(float* out, const bf16* const* keys, int64_t head_size) {
    constexpr int64_t kStep = kLanes * kPerWord<bf16>;
    for (int64_t d = 0; d < head_size; d += kStep) {
        transpose_words(keys, d, smaller(kStep, head_size - d), [&](int64_t first, int64_t column, u32_part word) {
            std::memcpy(out + (d / 2 + column) * kGroup + first, &word, sizeof(word));
        });
    }
}

// Two values, null where there is none, to words, [head_size].
void load_value_pair(float* out, const bf16* even, const bf16* odd, int64_t head_size) {
    for (int64_t d = 0; d < head_size; d += kLanes) {
        const int64_t rest = smaller(kLanes, head_size - d);
        const auto widened = [&](const bf16* value) {  // its bits in the upper halves
            if (!value) return broadcast(0.0f);
            return rest == kLanes ? load(value + d) : load_first(value + d, rest);
        };
        const f32x16 low = widened(even), high = widened(odd);
        for (int64_t i = 0; i < kParts; ++i) {
            const u32_part words = bit_cast<u32_part>(low.part[i]) >> 16 | bit_cast<u32_part>(high.part[i]);
            std::memcpy(out + d + i * kWidth, &words, sizeof(words));
        }
    }
}

}  // namespace
}  // namespace MOTET_ISA
}  // namespace motet
