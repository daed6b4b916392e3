// Low-rank adapters: rows that have one get y += (scale * (x A')) B'. Defined by motet/ops/reference/lora.py.
//
// Rows come sorted by adapter. A value of x A' is sixteen running sums (of bf16 where the machine multiplies pairs:
// sixteen of pairs) over all inputs in order, folded in the order of sum(); an output is one running sum over the
// ranks, added to y. So neither the tile's height, the other rows of an adapter nor the threads (which share out ranks
// and outputs) change a bit. Rows without an adapter are not touched.
#include "experts.h"
#include "kernels.h"
#include "vec.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kRankBlock = 16;       // ranks that a member takes at a time
constexpr int64_t kColumnBlock = 64;     // outputs
constexpr int kRanks = 4;                // of a tile of x A'
constexpr int kShrinkRows = kParts == 1 ? 4 : 1;
constexpr int kVectors = kParts == 1 ? 4 : 1;  // of a tile of outputs
constexpr int kExpandRows = 6;
constexpr int64_t kMinProducts = 16384;  // of a member of the team

template <int count>
struct Rows {
    static constexpr int value = count;
};

// Calls visit(Rows<n>, first row) for tiles of `most` rows, and for what is left.
template <int most, class Visit>
MOTET_INLINE void for_tiles(Range rows, const Visit& visit) {
    for (; rows.begin + most <= rows.end; rows.begin += most) visit(Rows<most>{}, rows.begin);
    if constexpr (most > 1) for_tiles<most - 1>(rows, visit);
}

// Some inputs at a time: sums of products, lane by lane.
template <class T>
struct Inputs {
    typedef f32x16 Values;
    static constexpr int64_t kStep = kLanes;

    MOTET_INLINE Values read(const T* p) { return load(p); }
    MOTET_INLINE f32x16 add(const f32x16& total, const Values& x, const Values& w) { return multiply_add(x, w, total); }
};

#if defined(__AVX512BF16__)

template <>
struct Inputs<bf16> {
    typedef __m512i Values;
    static constexpr int64_t kStep = 2 * kLanes;

    MOTET_INLINE Values read(const bf16* p) { return _mm512_loadu_si512(p); }
    MOTET_INLINE f32x16 add(f32x16 total, const Values& x, const Values& w) {
        total.part[0] = _mm512_dpbf16_ps(total.part[0], (__m512bh)x, (__m512bh)w);
        return total;
    }
};

#endif

template <class T, int rows>
MOTET_INLINE void multiply_step(f32x16 (&sums)[rows][kRanks], const T* const (&x)[rows], const T* const (&w)[kRanks],
                                int64_t k) {
    typename Inputs<T>::Values values[rows];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) values[r] = Inputs<T>::read(x[r] + k);
#pragma GCC unroll 4
    for (int j = 0; j < kRanks; ++j) {
        const auto weights = Inputs<T>::read(w[j] + k);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) sums[r][j] = Inputs<T>::add(sums[r][j], values[r], weights);
    }
}

// Ranks [rank, rank + 4) of `part` for the rows from `row` on, which have the adapter in `slot`.
template <class T, int rows>
void shrink_tile(const LoraShrinkArgs& a, int64_t row, int64_t slot, int64_t part, int64_t rank) {
    constexpr int64_t kStep = Inputs<T>::kStep;
    const int64_t num_inputs = a.num_inputs, whole = num_inputs / kStep * kStep;
    const T* x[rows];
    const T* w[kRanks];
    for (int r = 0; r < rows; ++r) x[r] = static_cast<const T*>(a.x) + a.tokens[row + r] * num_inputs;
    for (int j = 0; j < kRanks; ++j) {
        w[j] = static_cast<const T*>(a.a) + ((slot * a.num_parts + part) * a.max_rank + rank + j) * num_inputs;
    }
    f32x16 sums[rows][kRanks] = {};
    for (int64_t k = 0; k < whole; k += kStep) multiply_step<T, rows>(sums, x, w, k);
    if (whole < num_inputs) {  // zeros behind the last inputs
        T rest[rows + kRanks][kStep] = {};
        const size_t size = size_t(num_inputs - whole) * sizeof(T);
        const T* x_rest[rows];
        const T* w_rest[kRanks];
        for (int r = 0; r < rows; ++r) x_rest[r] = static_cast<T*>(std::memcpy(rest[r], x[r] + whole, size));
        for (int j = 0; j < kRanks; ++j) w_rest[j] = static_cast<T*>(std::memcpy(rest[rows + j], w[j] + whole, size));
        multiply_step<T, rows>(sums, x_rest, w_rest, 0);
    }
    const float scale = a.scales[slot * a.num_parts + part];
    for (int r = 0; r < rows; ++r) {
        float* out = a.out + ((row + r) * a.num_parts + part) * a.max_rank + rank;
        for (int j = 0; j < kRanks; ++j) out[j] = sum(sums[r][j]) * scale;
    }
}

template <class T>
void shrink_as(const LoraShrinkArgs& a, const Team& team) {
    const int64_t blocks_of_part = a.max_rank / kRankBlock, num_blocks = a.num_parts * blocks_of_part;
    const auto visit = [&](int64_t slot, Range rows, int64_t block) {
        const int64_t part = block / blocks_of_part, first = block % blocks_of_part * kRankBlock;
        const int64_t left = a.ranks[slot * a.num_parts + part] - first, end = left < kRankBlock ? left : kRankBlock;
        for (int64_t row = rows.begin; row < rows.end && end < kRankBlock; ++row) {  // the same whatever was there
            std::memset(a.out + (row * a.num_parts + part) * a.max_rank + first, 0, kRankBlock * sizeof(float));
        }
        for_tiles<kShrinkRows>(rows, [&](auto count, int64_t row) {
            for (int64_t rank = 0; rank < end; rank += kRanks) {
                shrink_tile<T, decltype(count)::value>(a, row, slot, part, first + rank);
            }
        });
    };
    for_each_expert(team, a.slots, a.num_rows, num_blocks, a.num_inputs * kRankBlock, kMinProducts, visit);
}

// Columns [column, column + 16 * kVectors) of the rows from `row` on, or the first `count` of them; b: of `rank` ranks.
template <class T, int rows>
void expand_tile(const LoraExpandArgs& a, int64_t row, int64_t part, int64_t rank, const T* b, int64_t column,
                 int64_t count) {
    const float* x = a.x + (row * a.num_parts + part) * a.max_rank;
    const int64_t x_stride = a.num_parts * a.max_rank;
    f32x16 sums[rows][kVectors] = {};
    for (int64_t j = 0; j < rank; ++j) {
        f32x16 weights[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) weights[v] = load(b + j * kColumnBlock + v * kLanes);
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) {
            const f32x16 input = broadcast(x[r * x_stride + j]);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(input, weights[v], sums[r][v]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        T* y = static_cast<T*>(a.y) + a.tokens[row + r] * a.num_outputs + column;
        for (int v = 0; v < kVectors; ++v) {
            T* at = y + v * kLanes;
            const int64_t left = count - v * kLanes;
            if (left >= kLanes) {
                store(at, load(at) + sums[r][v]);
            } else if (left > 0) {
                store_first(at, load_first(at, left) + sums[r][v], left);
            }
        }
    }
}

template <class T>
void expand_as(const LoraExpandArgs& a, const Team& team) {
    const auto width = [&](int64_t part) { return a.ends[part] - (part ? a.ends[part - 1] : 0); };
    const auto blocks = [&](int64_t part) { return (width(part) + kColumnBlock - 1) / kColumnBlock; };
    int64_t num_blocks = 0;
    for (int64_t part = 0; part < a.num_parts; ++part) num_blocks += blocks(part);
    const auto visit = [&](int64_t slot, Range rows, int64_t block) {
        const T* b = static_cast<const T*>(a.b) + (slot * num_blocks + block) * a.max_rank * kColumnBlock;
        int64_t part = 0;
        for (; block >= blocks(part); ++part) block -= blocks(part);
        const int64_t rank = a.ranks[slot * a.num_parts + part];
        if (rank == 0) return;
        const int64_t first = a.ends[part] - width(part) + block * kColumnBlock;
        const int64_t left = a.ends[part] - first, count = left < kColumnBlock ? left : kColumnBlock;
        for_tiles<kExpandRows>(rows, [&](auto size, int64_t row) {
            for (int64_t i = 0; i < count; i += kVectors * kLanes) {
                expand_tile<T, decltype(size)::value>(a, row, part, rank, b + i, first + i, count - i);
            }
        });
    };
    for_each_expert(team, a.slots, a.num_rows, num_blocks, kColumnBlock * kRankBlock, kMinProducts, visit);
}

}  // namespace

void lora_shrink(const LoraShrinkArgs& a, const Team& team) {
    switch (a.dtype) {
        case DType::f32: return shrink_as<float>(a, team);
        case DType::bf16: return shrink_as<bf16>(a, team);
        case DType::f16: return shrink_as<f16>(a, team);
    }
}

void lora_expand(const LoraExpandArgs& a, const Team& team) {
    switch (a.dtype) {
        case DType::f32: return expand_as<float>(a, team);
        case DType::bf16: return expand_as<bf16>(a, team);
        case DType::f16: return expand_as<f16>(a, team);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
