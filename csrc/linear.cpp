// Linear layers over weights that were packed once (out = x w' + bias + residual). Defined by
// motet/ops/reference/linear.py.
//
// Packed weights: blocks of 64 outputs; within a block one input after the other (bf16: one pair of inputs), each with
// its 64 weights side by side. So a tile of 6 rows by 64 outputs stays in registers while it walks all inputs in order:
// every output is one running sum over k = 0, 1, 2, ..., whatever the number of rows, the tile's height or the number of
// threads (which share out blocks of outputs). That is the whole proof of exactness.
#include "experts.h"
#include "kernels.h"
#include "linear_output.h"
#include "vec.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kBlock = kLinearBlock;
// Vectors of 16 outputs that a tile holds per row: as many as the registers take beside 6 rows of them.
constexpr int kVectors = kParts == 1 ? 4 : 1;
constexpr int kTileRows = 6;
constexpr int64_t kMinProducts = 16384;  // of a member of the team

// Inputs per packed step.
template <class T>
constexpr int64_t kStep = 1;
template <>
constexpr int64_t kStep<bf16> = 2;

template <class T>
constexpr int64_t num_steps(int64_t num_inputs) {
    return (num_inputs + kStep<T> - 1) / kStep<T>;
}

MOTET_INLINE float widen(float value) { return value; }

MOTET_INLINE float widen(bf16 value) { return bit_cast<float>(uint32_t(value.bits) << 16); }

MOTET_INLINE float widen(f16 value) {
#if defined(__F16C__)
    return _cvtsh_ss(value.bits);
#else
    return to_float(value);
#endif
}

// One packed step for a tile: sums[r][v] += x[r] * w[v].
template <class X, class W, int rows>
struct Multiply {
    MOTET_INLINE void step(f32x16 (&sums)[rows][kVectors], const W* w, const X* x, int64_t stride) {
        f32x16 weights[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) weights[v] = load(w + v * kLanes);
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) {
            const f32x16 input = broadcast(widen(x[r * stride]));
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(input, weights[v], sums[r][v]);
        }
    }
};

struct bf16_pair {
    uint32_t bits;  // the first input in the low half
};

MOTET_INLINE bf16_pair load_pair(const bf16* x) {
    bf16_pair pair;
    std::memcpy(&pair, x, sizeof(pair));
    return pair;
}

// Even and odd inputs' weights of a vector of pairs.
MOTET_INLINE void split_pairs(const bf16* w, f32x16& even, f32x16& odd) {
    for (int64_t i = 0; i < kParts; ++i) {
        u32_part pairs;
        std::memcpy(&pairs, w + 2 * i * kWidth, sizeof(pairs));
        even.part[i] = bit_cast<f32_part>(pairs << 16);
        odd.part[i] = bit_cast<f32_part>(pairs & 0xffff0000u);
    }
}

template <int rows>
MOTET_INLINE void multiply_split(f32x16 (&sums)[rows][kVectors], const bf16* w, const float (&first)[rows],
                                 const float (&second)[rows]) {
    f32x16 even[kVectors], odd[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) split_pairs(w + v * 2 * kLanes, even[v], odd[v]);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
        const f32x16 x0 = broadcast(first[r]), x1 = broadcast(second[r]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(x1, odd[v], multiply_add(x0, even[v], sums[r][v]));
    }
}

template <int rows>
MOTET_INLINE void multiply_pairs(f32x16 (&sums)[rows][kVectors], const bf16* w, const bf16_pair (&x)[rows]) {
#if defined(__AVX512BF16__)
    __m512bh weights[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) weights[v] = (__m512bh)_mm512_loadu_si512(w + v * 2 * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
        const __m512bh input = (__m512bh)_mm512_set1_epi32(int(x[r].bits));
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[r][v].part[0] = _mm512_dpbf16_ps(sums[r][v].part[0], weights[v], input);
    }
#else
    float first[rows], second[rows];
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
        first[r] = bit_cast<float>(x[r].bits << 16);
        second[r] = bit_cast<float>(x[r].bits & 0xffff0000u);
    }
    multiply_split<rows>(sums, w, first, second);
#endif
}

// Pairs of weights, and inputs of another type.
template <class X, int rows>
struct Multiply<X, bf16, rows> {
    MOTET_INLINE void step(f32x16 (&sums)[rows][kVectors], const bf16* w, const X* x, int64_t stride) {
        float first[rows], second[rows];
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) {
            first[r] = widen(x[r * stride]);
            second[r] = widen(x[r * stride + 1]);
        }
        multiply_split<rows>(sums, w, first, second);
    }

    // The last input of an odd number, with a zero beside it.
    MOTET_INLINE void odd_step(f32x16 (&sums)[rows][kVectors], const bf16* w, const X* x, int64_t stride) {
        float first[rows];
        const float second[rows] = {};
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) first[r] = widen(x[r * stride]);
        multiply_split<rows>(sums, w, first, second);
    }
};

template <int rows>
struct Multiply<bf16, bf16, rows> {
    MOTET_INLINE void step(f32x16 (&sums)[rows][kVectors], const bf16* w, const bf16* x, int64_t stride) {
        bf16_pair pairs[rows];
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) pairs[r] = load_pair(x + r * stride);
        multiply_pairs<rows>(sums, w, pairs);
    }

    MOTET_INLINE void odd_step(f32x16 (&sums)[rows][kVectors], const bf16* w, const bf16* x, int64_t stride) {
        bf16_pair pairs[rows];
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) pairs[r] = bf16_pair{x[r * stride].bits};
        multiply_pairs<rows>(sums, w, pairs);
    }
};

// `rows` rows from `row` on, times the 16 * kVectors outputs of block `block` that begin at vector `vector`.
template <class X, class W, int rows>
void tile(const LinearArgs& a, int64_t row, int64_t block, int64_t vector) {
    const int64_t k = a.num_inputs;
    const X* x = static_cast<const X*>(a.x) + row * k;
    const W* w = static_cast<const W*>(a.weight) + (block * num_steps<W>(k) * kBlock + vector * kLanes) * kStep<W>;
    f32x16 sums[rows][kVectors] = {};
    const int64_t whole = k / kStep<W>;
    for (int64_t step = 0; step < whole; ++step) {
        Multiply<X, W, rows>::step(sums, w + step * kBlock * kStep<W>, x + step * kStep<W>, k);
    }
    if constexpr (kStep<W> == 2) {
        if (k % 2) Multiply<X, W, rows>::odd_step(sums, w + whole * kBlock * 2, x + whole * 2, k);
    }
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
            const int64_t column = block * kBlock + (vector + v) * kLanes;
            finish(a.output, sums[r][v], row + r, column, a.num_outputs - column);
        }
    }
}

template <class X, class W>
void block_of_outputs(const LinearArgs& a, int64_t block, Range rows) {
    for (int64_t vector = 0; vector < kBlock / kLanes; vector += kVectors) {
        int64_t row = rows.begin;
        for (; row + kTileRows <= rows.end; row += kTileRows) tile<X, W, kTileRows>(a, row, block, vector);
        switch (rows.end - row) {
            case 5: tile<X, W, 5>(a, row, block, vector); break;
            case 4: tile<X, W, 4>(a, row, block, vector); break;
            case 3: tile<X, W, 3>(a, row, block, vector); break;
            case 2: tile<X, W, 2>(a, row, block, vector); break;
            case 1: tile<X, W, 1>(a, row, block, vector); break;
        }
    }
}

// Rows in whole tiles that are taken at a time: some of many, so that few blocks are shared out evenly too.
int64_t rows_at_a_time(int64_t num_rows) {
    constexpr int64_t kFew = 4 * kTileRows, kMany = 16 * kTileRows;
    if (num_rows <= kFew) return num_rows;
    const int64_t half = (num_rows + 2 * kTileRows - 1) / (2 * kTileRows) * kTileRows;
    return half < kMany ? half : kMany;
}

template <class X, class W>
void linear_as(const LinearArgs& a, const Team& team) {
    if (a.num_rows == 0) return;
    const int64_t num_blocks = (a.num_outputs + kBlock - 1) / kBlock;
    const int64_t chunk = rows_at_a_time(a.num_rows), num_chunks = (a.num_rows + chunk - 1) / chunk;
    team.for_each(num_blocks * num_chunks, kMinProducts / (chunk * a.num_inputs * kBlock + 1), [&](int64_t i) {
        const int64_t first = i / num_blocks * chunk, end = first + chunk;
        block_of_outputs<X, W>(a, i % num_blocks, {first, end < a.num_rows ? end : a.num_rows});
    });
}

template <class X, class W>
void linear_as(const ExpertLinearArgs& a, const Team& team) {
    LinearArgs one = a.linear;
    const int64_t num_blocks = (one.num_outputs + kBlock - 1) / kBlock, products = one.num_inputs * kBlock;
    const auto visit = [&](int64_t expert, Range rows, int64_t block) {
        one.weight = a.weights[expert];
        block_of_outputs<X, W>(one, block, rows);
    };
    for_each_expert(team, a.experts, one.num_rows, num_blocks, products, kMinProducts, visit);
}

template <class W, class Args>
void linear_over(DType dtype, const Args& a, const Team& team) {
    switch (dtype) {
        case DType::f32: return linear_as<float, W>(a, team);
        case DType::bf16: return linear_as<bf16, W>(a, team);
        case DType::f16: return linear_as<f16, W>(a, team);
    }
}

// `like`: the arguments that say which types meet.
template <class Args>
void linear_of(const LinearArgs& like, const Args& a, const Team& team) {
    switch (like.weight_dtype) {
        case DType::f32: return linear_over<float>(like.output.dtype, a, team);
        case DType::bf16: return linear_over<bf16>(like.output.dtype, a, team);
        case DType::f16: return linear_over<f16>(like.output.dtype, a, team);
    }
}

// w [num_outputs, num_inputs] -> packed; outputs and inputs that are not there are zero. A few inputs of a block at a time,
// so that what is written stays in the first-level cache.
template <class T>
void pack_as(void* packed, const void* weight, int64_t num_outputs, int64_t num_inputs) {
    constexpr int64_t kSize = kStep<T>, kStepsAtATime = 16;
    const T* w = static_cast<const T*>(weight);
    const int64_t steps = num_steps<T>(num_inputs), whole = num_inputs / kSize;
    for (int64_t first = 0; first < num_outputs; first += kBlock) {
        T* block = static_cast<T*>(packed) + first * steps * kSize;
        const int64_t rest = num_outputs - first, count = rest < kBlock ? rest : kBlock;
        if (count < kBlock || whole < steps) std::memset(block, 0, size_t(steps * kSize * kBlock) * sizeof(T));
        for (int64_t start = 0; start < steps; start += kStepsAtATime) {
            const int64_t end = start + kStepsAtATime < whole ? start + kStepsAtATime : whole;
            for (int64_t n = 0; n < count; ++n) {
                const T* row = w + (first + n) * num_inputs;
                T* column = block + n * kSize;
                for (int64_t step = start; step < end; ++step) {
                    std::memcpy(column + step * kBlock * kSize, row + step * kSize, kSize * sizeof(T));
                }
            }
        }
        for (int64_t n = 0; n < count && whole < steps; ++n) {  // an odd input
            block[(whole * kBlock + n) * kSize] = w[(first + n) * num_inputs + num_inputs - 1];
        }
    }
}

template <class W, class T>
void unpack_rows_as(const UnpackRowsArgs& a, const Team& team) {
    const W* packed = static_cast<const W*>(a.weight);
    const int64_t block_size = num_steps<W>(a.num_inputs) * kStep<W> * kBlock;
    const Range rows = team.share(a.num_rows);
    for (int64_t i = rows.begin; i < rows.end; ++i) {
        const int64_t n = a.rows[i];
        const W* column = packed + n / kBlock * block_size + n % kBlock * kStep<W>;
        T* out = static_cast<T*>(a.out) + i * a.num_inputs;
        for (int64_t first = 0; first < a.num_inputs; first += kLanes) {
            const int64_t rest = a.num_inputs - first, count = rest < kLanes ? rest : kLanes;
            W some[kLanes];
            for (int64_t j = 0; j < count; ++j) {
                const int64_t k = first + j;
                some[j] = column[k / kStep<W> * kBlock * kStep<W> + k % kStep<W>];
            }
            convert(out + first, some, count);
        }
        if (a.scale != 1.0f) scale_row(out, a.num_inputs, a.scale);
    }
}

template <class W>
void unpack_rows_of(const UnpackRowsArgs& a, const Team& team) {
    switch (a.dtype) {
        case DType::f32: return unpack_rows_as<W, float>(a, team);
        case DType::bf16: return unpack_rows_as<W, bf16>(a, team);
        case DType::f16: return unpack_rows_as<W, f16>(a, team);
    }
}

}  // namespace

void linear(const LinearArgs& a, const Team& team) { linear_of(a, a, team); }

void expert_linear(const ExpertLinearArgs& a, const Team& team) { linear_of(a.linear, a, team); }

void pack_linear(void* packed, const void* weight, int64_t num_outputs, int64_t num_inputs, DType dtype) {
    switch (dtype) {
        case DType::f32: return pack_as<float>(packed, weight, num_outputs, num_inputs);
        case DType::bf16: return pack_as<bf16>(packed, weight, num_outputs, num_inputs);
        case DType::f16: return pack_as<f16>(packed, weight, num_outputs, num_inputs);
    }
}

void unpack_rows(const UnpackRowsArgs& a, const Team& team) {
    switch (a.weight_dtype) {
        case DType::f32: return unpack_rows_of<float>(a, team);
        case DType::bf16: return unpack_rows_of<bf16>(a, team);
        case DType::f16: return unpack_rows_of<f16>(a, team);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
