// How quantised weights lie in memory, and what their integers mean. One struct for each kind.
//
// Weights are packed in blocks of 32 outputs. A block is a row of units along the inputs; a unit is a header (scales
// and minima, each for all 32 outputs side by side) and then chunks of 32 inputs. A chunk holds, for each vector of 16
// outputs, the low four bits of all weights and then the higher ones: byte 4 o + j of a 64-byte plane belongs to output o
// and to inputs 4 s + j of some steps s. Plane p of four low bits has step 2 p in its low halves and step 2 p + 1 in the
// high ones; the plane of fifth bits has step s in bit s; plane p of the bits 5 and 6 has step 4 p + i in bits 2 i and
// 2 i + 1; plane s of eight bits is step s.
//
// A weight is scale * (q - zero) + minimum, q an unsigned integer of kBits bits and zero = 1 << kZeroShift.
#pragma once

#include "int_vec.h"
#include "kernels.h"

namespace motet {
namespace MOTET_ISA {

constexpr int64_t kOutputs = kQuantBlock;
constexpr int64_t kOutputVectors = kOutputs / kLanes;
constexpr int64_t kChunk = 32;  // inputs
constexpr int kSteps = 8;       // of four inputs, in a chunk
constexpr int64_t kPlane = 64;  // bytes

template <int bits>
struct Planes {
    static constexpr int kBits = bits;
    static constexpr int64_t kVectorBytes = bits * kPlane;  // of a chunk, for 16 outputs
    static constexpr int64_t kChunkBytes = kOutputVectors * kVectorBytes;

    // Step `step` of the chunk's part for 16 outputs.
    MOTET_INLINE u32x16 weights(const uint8_t* planes, int step) {
        if constexpr (bits == 8) {
            return load_words(planes + step * kPlane);
        } else {
            const u32x16 both = load_words(planes + step / 2 * kPlane);
            const u32x16 low = (step % 2 ? both >> 4 : both) & 0x0f0f0f0fu;
            if constexpr (bits == 4) {
                return low;
            } else if constexpr (bits == 5) {
                const u32x16 high = load_words(planes + 4 * kPlane);
                return low | ((step < 4 ? high << (4 - step) : high >> (step - 4)) & 0x10101010u);
            } else {
                const u32x16 high = load_words(planes + (4 + step / 4) * kPlane);
                const int bit = step % 4 * 2;
                return low | ((bit < 4 ? high << (4 - bit) : high >> (bit - 4)) & 0x30303030u);
            }
        }
    }

    // The reverse: eight words of four inputs each, as bytes, of one output; `planes` points to its first word.
    MOTET_INLINE void put(uint8_t* planes, const uint32_t (&words)[kSteps]) {
        const auto store_word = [planes](int plane, uint32_t word) {
            std::memcpy(planes + plane * kPlane, &word, sizeof(word));
        };
        if constexpr (bits == 8) {
            for (int s = 0; s < kSteps; ++s) store_word(s, words[s]);
            return;
        }
        for (int p = 0; p < 4; ++p) {
            store_word(p, (words[2 * p] & 0x0f0f0f0fu) | (words[2 * p + 1] & 0x0f0f0f0fu) << 4);
        }
        if constexpr (bits == 5) {
            uint32_t high = 0;
            for (int s = 0; s < kSteps; ++s) high |= (words[s] >> 4 & 0x01010101u) << s;
            store_word(4, high);
        } else if constexpr (bits == 6) {
            for (int p = 0; p < 2; ++p) {
                uint32_t high = 0;
                for (int i = 0; i < 4; ++i) high |= (words[4 * p + i] >> 4 & 0x03030303u) << (2 * i);
                store_word(4 + p, high);
            }
        }
    }
};

constexpr int kNoZero = -1;

// One scale, and perhaps one minimum, in float16 for each group.
template <int bits, int zero_shift, bool has_minima>
struct Plain : Planes<bits> {
    static constexpr int kZeroShift = zero_shift;
    static constexpr bool kHasMinima = has_minima;
    static constexpr int kGroups = 1;  // of a unit
    static constexpr int kHalves = 1;  // scales for each group
    static constexpr int64_t kHeaderBytes = (has_minima ? 4 : 2) * kOutputs;

    MOTET_INLINE f32x16 scales(const uint8_t* unit, int64_t, int64_t vector) {
        return load(reinterpret_cast<const f16*>(unit) + vector * kLanes);
    }

    MOTET_INLINE f32x16 minima(const uint8_t* unit, int64_t, int64_t vector) {
        return load(reinterpret_cast<const f16*>(unit) + kOutputs + vector * kLanes);
    }
};

using Q4_0 = Plain<4, 3, false>;
using Q4_1 = Plain<4, kNoZero, true>;  // and "int4", in groups of 32, 64 or 128
using Q5_0 = Plain<5, 4, false>;
using Q5_1 = Plain<5, kNoZero, true>;
using Q8_0 = Plain<8, 7, false>;

// Eight groups of 32; scales and minima are products of a float16 for all and an integer for each group.
template <int bits>
struct KWithMinima : Planes<bits> {
    static constexpr int kZeroShift = kNoZero;
    static constexpr bool kHasMinima = true;
    static constexpr int kGroups = 8;
    static constexpr int kHalves = 1;
    static constexpr int64_t kHeaderBytes = 4 * kOutputs + 16 * kOutputs;  // d, m; 8 x (scales, minima)

    MOTET_INLINE f32x16 scales(const uint8_t* unit, int64_t group, int64_t vector) {
        return load(reinterpret_cast<const f16*>(unit) + vector * kLanes) *
               load(unit + (4 + 2 * group) * kOutputs + vector * kLanes);
    }

    MOTET_INLINE f32x16 minima(const uint8_t* unit, int64_t group, int64_t vector) {
        return load(reinterpret_cast<const f16*>(unit) + kOutputs + vector * kLanes) *
               load(unit + (5 + 2 * group) * kOutputs + vector * kLanes) * -1.0f;
    }
};

using Q4_K = KWithMinima<4>;
using Q5_K = KWithMinima<5>;

// Eight groups of 32 activations, sixteen of 16 weights.
struct Q6_K : Planes<6> {
    static constexpr int kZeroShift = 5;
    static constexpr bool kHasMinima = false;
    static constexpr int kGroups = 8;
    static constexpr int kHalves = 2;
    static constexpr int64_t kHeaderBytes = 2 * kOutputs + 16 * kOutputs;  // d; 16 scales

    MOTET_INLINE f32x16 scales(const uint8_t* unit, int64_t half, int64_t vector) {
        return load(reinterpret_cast<const f16*>(unit) + vector * kLanes) *
               load(reinterpret_cast<const int8_t*>(unit) + (2 + half) * kOutputs + vector * kLanes);
    }

    MOTET_INLINE f32x16 minima(const uint8_t*, int64_t, int64_t) { return {}; }
};

// One unit for the whole row.
struct Int8 : Planes<8> {
    static constexpr int kZeroShift = 7;
    static constexpr bool kHasMinima = false;
    static constexpr int kGroups = 1;
    static constexpr int kHalves = 1;
    static constexpr int64_t kHeaderBytes = 4 * kOutputs;  // float32

    MOTET_INLINE f32x16 scales(const uint8_t* unit, int64_t, int64_t vector) {
        return load(reinterpret_cast<const float*>(unit) + vector * kLanes);
    }

    MOTET_INLINE f32x16 minima(const uint8_t*, int64_t, int64_t) { return {}; }
};

// Calls visit(Format{}) for a kind.
template <class Visit>
MOTET_INLINE void with_format(QuantKind kind, const Visit& visit) {
    switch (kind) {
        case QuantKind::q4_0: return visit(Q4_0{});
        case QuantKind::q4_1: return visit(Q4_1{});
        case QuantKind::q5_0: return visit(Q5_0{});
        case QuantKind::q5_1: return visit(Q5_1{});
        case QuantKind::q8_0: return visit(Q8_0{});
        case QuantKind::q4_k: return visit(Q4_K{});
        case QuantKind::q5_k: return visit(Q5_K{});
        case QuantKind::q6_k: return visit(Q6_K{});
        case QuantKind::int8: return visit(Int8{});
        case QuantKind::int4: return visit(Q4_1{});
    }
}

// The sizes of a packed matrix. group: activations that share a scale.
template <class F>
struct Walk {
    int64_t num_units;
    int64_t chunks_per_group;
    int64_t unit_bytes;
    int64_t group_bytes;  // of a record of activations, without its GroupMeta

    Walk(int64_t num_inputs, int64_t group) {
        num_units = (num_inputs + F::kGroups * group - 1) / (F::kGroups * group);
        chunks_per_group = (group + kChunk - 1) / kChunk;
        unit_bytes = F::kHeaderBytes + F::kGroups * chunks_per_group * F::kChunkBytes;
        group_bytes = chunks_per_group * kChunk;
    }

    int64_t block_bytes() const { return num_units * unit_bytes; }
    int64_t record_bytes() const { return group_bytes + int64_t(sizeof(GroupMeta)); }
    int64_t row_bytes() const { return num_units * F::kGroups * record_bytes(); }
};

}  // namespace MOTET_ISA
}  // namespace motet
