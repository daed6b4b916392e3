// Linear layers over quantised weights: int8 activations times 4 to 8-bit weights. Defined by
// motet/ops/reference/quantized.py; the layout of the weights is in quant_formats.h, that of a row of activations in
// kernel_args.h (GroupMeta).
//
// A tile of rows and outputs stays in registers while it walks all groups of inputs in order. Within a group the
// products are added as integers, which is exact in any order; sums of groups are scaled and added as floats, group 0, 1,
// 2, ... and for each first the product and then the minimum. So an output's bits depend neither on the tile it is in,
// nor on the threads, which share out blocks of outputs; nor on the instruction set, since every operation is the same.
#include "experts.h"
#include "linear_output.h"
#include "quant_formats.h"
#include "team.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int kFewRows = 6;
constexpr int64_t kMinProducts = 32768;  // of a member of the team

// Touches all of what comes next, in the order of addresses: with few rows the weights come from memory, and the two
// vectors of outputs are read in turn, 256 to 512 bytes apart, which the processor's own prefetching follows badly.
template <int64_t num_bytes>
__attribute__((always_inline)) inline void touch(const uint8_t* p) {
#pragma GCC unroll 20
    for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(p + i);
}

template <class F>
constexpr size_t kSumOffset =
    F::kHalves == 2 ? offsetof(GroupMeta, negative_halves) : offsetof(GroupMeta, negative_sum);

// sums[r][v] += the group's products. x: the rows' records of this group, `stride` apart.
template <class F, int rows, int vectors>
MOTET_INLINE void add_group(f32x16 (&sums)[rows][vectors], const Walk<F>& walk, const uint8_t* unit, int64_t group,
                            const uint8_t* planes, int64_t vector, const uint8_t* x, int64_t stride) {
    using Bytes = ByteWeights<F::kBits>;
    constexpr int kHalfSteps = kSteps / F::kHalves;
    const uint8_t* metas = x + walk.group_bytes;
#pragma GCC unroll 2
    for (int half = 0; half < F::kHalves; ++half) {
        i32x16 products[rows][vectors];
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r) {
            i32x16 start = {};
            if constexpr (F::kZeroShift != kNoZero) {
                start = broadcast(read<int32_t>(metas + r * stride + kSumOffset<F> + half * sizeof(int32_t)));
                for (int64_t i = 0; i < kParts; ++i) start.part[i] <<= F::kZeroShift;
            }
#pragma GCC unroll 2
            for (int v = 0; v < vectors; ++v) products[r][v] = start;
        }
        const int64_t num_chunks = F::kGroups > 1 ? 1 : walk.chunks_per_group;
        for (int64_t c = 0; c < num_chunks; ++c) {
            const uint8_t* chunk = planes + c * F::kChunkBytes;
            const uint8_t* inputs = x + c * kChunk;
            if constexpr (rows <= kFewRows) {
                if (half == 0) touch<vectors * F::kVectorBytes>(chunk);
            }
#pragma GCC unroll 8
            for (int s = half * kHalfSteps; s < (half + 1) * kHalfSteps; ++s) {
                Bytes weights[vectors];
#pragma GCC unroll 2
                for (int v = 0; v < vectors; ++v) weights[v] = Bytes::of(F::weights(chunk + v * F::kVectorBytes, s));
#pragma GCC unroll 12
                for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
                    for (int v = 0; v < vectors; ++v) {
                        Bytes::add(products[r][v], weights[v], read<int32_t>(inputs + r * stride + 4 * s));
                    }
                }
            }
        }
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) {
            const f32x16 scales = F::scales(unit, group * F::kHalves + half, vector + v);
#pragma GCC unroll 12
            for (int r = 0; r < rows; ++r) {
                const f32x16 scale = scales * read<float>(metas + r * stride + offsetof(GroupMeta, scale));
                sums[r][v] = fma(to_float(products[r][v]), scale, sums[r][v]);
            }
        }
    }
    if constexpr (F::kHasMinima) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) {
            const f32x16 minima = F::minima(unit, group, vector + v);
#pragma GCC unroll 12
            for (int r = 0; r < rows; ++r) {
                const float sum = read<float>(metas + r * stride + offsetof(GroupMeta, scaled_sum));
                sums[r][v] = fma(minima, broadcast(sum), sums[r][v]);
            }
        }
    }
}

// Rows [row, row + rows) times vectors [vector, vector + vectors) of a block.
template <class F, int rows, int vectors>
void tile(const QuantLinearArgs& a, const Walk<F>& walk, int64_t block, int64_t vector, int64_t row) {
    const int64_t stride = walk.row_bytes();
    const uint8_t* x = static_cast<const uint8_t*>(a.rows) + row * stride;
    const uint8_t* unit = static_cast<const uint8_t*>(a.weight) + block * walk.block_bytes();
    f32x16 sums[rows][vectors] = {};
    for (int64_t u = 0; u < walk.num_units; ++u, unit += walk.unit_bytes) {
        const uint8_t* planes = unit + F::kHeaderBytes + vector * F::kVectorBytes;
        if constexpr (rows <= kFewRows) touch<F::kHeaderBytes>(unit);
        for (int64_t group = 0; group < F::kGroups; ++group) {
            add_group<F, rows, vectors>(sums, walk, unit, group, planes, vector, x, stride);
            planes += F::kChunkBytes;
            x += walk.record_bytes();
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) {
            const int64_t column = block * kOutputs + (vector + v) * kLanes;
            finish(a.output, sums[r][v], row + r, column, a.num_outputs - column);
        }
    }
}

// Tiles of rows from `row` on, as long as there are so many; returns the first row that is left.
template <class F, int rows, int vectors>
int64_t tiles(const QuantLinearArgs& a, const Walk<F>& walk, int64_t block, int64_t row, int64_t end) {
    for (; row + rows <= end; row += rows) {
        for (int64_t v = 0; v < kOutputVectors; v += vectors) tile<F, rows, vectors>(a, walk, block, v, row);
    }
    return row;
}

template <class F>
void block_of_outputs(const QuantLinearArgs& a, const Walk<F>& walk, int64_t block, Range rows) {
    int64_t row = rows.begin;
    if constexpr (kWidth == 16) {
        row = tiles<F, 12, 1>(a, walk, block, row, rows.end);
        row = tiles<F, 6, 2>(a, walk, block, row, rows.end);
        row = tiles<F, 4, 2>(a, walk, block, row, rows.end);
        row = tiles<F, 3, 2>(a, walk, block, row, rows.end);
        row = tiles<F, 2, 2>(a, walk, block, row, rows.end);
        tiles<F, 1, 2>(a, walk, block, row, rows.end);
    } else {
        row = tiles<F, 2, 1>(a, walk, block, row, rows.end);
        tiles<F, 1, 1>(a, walk, block, row, rows.end);
    }
}

}  // namespace

void quant_linear(const QuantLinearArgs& a, const Team& team) {
    with_format(a.kind, [&](auto format) {
        const Walk<decltype(format)> walk(a.num_inputs, a.group);
        const int64_t least = kMinProducts / (a.num_rows * a.num_inputs * kOutputs + 1);
        team.for_each((a.num_outputs + kOutputs - 1) / kOutputs, least,
                      [&](int64_t block) { block_of_outputs(a, walk, block, {0, a.num_rows}); });
    });
}

void quant_expert_linear(const QuantExpertLinearArgs& a, const Team& team) {
    with_format(a.linear.kind, [&](auto format) {
        QuantLinearArgs one = a.linear;
        const Walk<decltype(format)> walk(one.num_inputs, one.group);
        const int64_t num_blocks = (one.num_outputs + kOutputs - 1) / kOutputs, products = one.num_inputs * kOutputs;
        const auto visit = [&](int64_t expert, Range rows, int64_t block) {
            one.weight = a.weights[expert];
            block_of_outputs(one, walk, block, rows);
        };
        for_each_expert(team, a.experts, one.num_rows, num_blocks, products, kMinProducts, visit);
    });
}

}  // namespace MOTET_ISA
}  // namespace motet
