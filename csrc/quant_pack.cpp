// Quantised weights into the layout of quant_formats.h, at load; and rows of it back to floats, for embeddings.
//
// Blocks of GGUF are taken apart one unit of 32 outputs at a time, so that what is written stays in the first-level
// cache. A dequantised weight is what the `gguf` package gives: the same float32 operations in the same order.
#include <cstdlib>
#include <new>

#include "quant_formats.h"
#include "team.h"

namespace motet {
namespace MOTET_ISA {
namespace {

template <class T>
MOTET_INLINE void write(uint8_t* p, T value) {
    std::memcpy(p, &value, sizeof(value));
}

constexpr uint32_t kLow = 0x0f0f0f0fu;

// Four bits, lowest first, as bytes of 0 or 16.
MOTET_INLINE uint32_t fifth_bits(uint32_t bits) { return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4; }

// How a format's source is read: the bytes of a unit of one output, its header, and its chunks as eight words of four
// inputs. (ggml's ggml-common.h and ggml-quants.c; int4 is Q4_1 with more than one chunk, int8 a float32 and the bytes.)
template <class F>
struct Source;

template <int bits, int zero_shift, bool has_minima>
struct Source<Plain<bits, zero_shift, has_minima>> {
    static constexpr int64_t kHead = (has_minima ? 4 : 2) + (bits == 5 ? 4 : 0);

    static int64_t unit_bytes(int64_t num_chunks) { return kHead + num_chunks * (bits == 8 ? 32 : 16); }

    MOTET_INLINE void put_header(uint8_t* unit, int64_t output, const uint8_t* source) {
        write(unit + 2 * output, read<uint16_t>(source));
        if (has_minima) write(unit + 2 * (kOutputs + output), read<uint16_t>(source + 2));
    }

    MOTET_INLINE void take_chunk(uint32_t (&words)[kSteps], const uint8_t* source, int64_t chunk) {
        if constexpr (bits == 8) {
            for (int s = 0; s < kSteps; ++s) words[s] = read<uint32_t>(source + kHead + 4 * s) ^ 0x80808080u;
        } else {
            for (int s = 0; s < 4; ++s) {
                const uint32_t both = read<uint32_t>(source + kHead + chunk * 16 + 4 * s);
                words[s] = both & kLow;
                words[4 + s] = both >> 4 & kLow;
            }
            if constexpr (bits == 5) {
                const uint32_t high = read<uint32_t>(source + kHead - 4);
                for (int s = 0; s < kSteps; ++s) words[s] |= fifth_bits(high >> (4 * s));
            }
        }
    }
};

template <int bits>
struct Source<KWithMinima<bits>> {
    static constexpr int64_t kHead = 16 + (bits == 5 ? 32 : 0);

    static int64_t unit_bytes(int64_t) { return kHead + 128; }

    // Eight scales and eight minima of six bits stand in 12 bytes.
    MOTET_INLINE void put_header(uint8_t* unit, int64_t output, const uint8_t* source) {
        write(unit + 2 * output, read<uint16_t>(source));
        write(unit + 2 * (kOutputs + output), read<uint16_t>(source + 2));
        const uint8_t* packed = source + 4;
        for (int g = 0; g < 4; ++g) {
            const uint8_t scale = packed[g], minimum = packed[4 + g], both = packed[8 + g];
            uint8_t* low = unit + (4 + 2 * g) * kOutputs + output;
            low[0] = scale & 63;
            low[kOutputs] = minimum & 63;
            low[8 * kOutputs] = uint8_t((both & 15) | (scale >> 2 & 48));
            low[9 * kOutputs] = uint8_t(both >> 4 | (minimum >> 2 & 48));
        }
    }

    MOTET_INLINE void take_chunk(uint32_t (&words)[kSteps], const uint8_t* source, int64_t chunk) {
        for (int s = 0; s < kSteps; ++s) {
            const uint32_t both = read<uint32_t>(source + kHead + chunk / 2 * 32 + 4 * s);
            words[s] = both >> (chunk % 2 * 4) & kLow;
            if (bits == 5) words[s] |= (read<uint32_t>(source + 16 + 4 * s) >> chunk & 0x01010101u) << 4;
        }
    }
};

template <>
struct Source<Q6_K> {
    static int64_t unit_bytes(int64_t) { return 210; }

    MOTET_INLINE void put_header(uint8_t* unit, int64_t output, const uint8_t* source) {
        write(unit + 2 * output, read<uint16_t>(source + 208));
        for (int i = 0; i < 16; ++i) unit[(2 + i) * kOutputs + output] = source[192 + i];
    }

    MOTET_INLINE void take_chunk(uint32_t (&words)[kSteps], const uint8_t* source, int64_t chunk) {
        const int64_t part = chunk / 4, quarter = chunk % 4;
        const uint8_t* low = source + part * 64 + quarter % 2 * 32;
        const uint8_t* high = source + 128 + part * 32;
        for (int s = 0; s < kSteps; ++s) {
            words[s] = (read<uint32_t>(low + 4 * s) >> (quarter / 2 * 4) & kLow) |
                       (read<uint32_t>(high + 4 * s) >> (quarter * 2) & 0x03030303u) << 4;
        }
    }
};

template <>
struct Source<Int8> {
    static int64_t unit_bytes(int64_t num_chunks) { return 4 + num_chunks * kChunk; }

    MOTET_INLINE void put_header(uint8_t* unit, int64_t output, const uint8_t* source) {
        write(unit + 4 * output, read<uint32_t>(source));
    }

    MOTET_INLINE void take_chunk(uint32_t (&words)[kSteps], const uint8_t* source, int64_t chunk) {
        for (int s = 0; s < kSteps; ++s) words[s] = read<uint32_t>(source + 4 + chunk * kChunk + 4 * s) ^ 0x80808080u;
    }
};

// One block of outputs, from `count` rows of source units.
template <class F>
void pack_block(uint8_t* block, const uint8_t* source, int64_t count, const Walk<F>& walk) {
    const int64_t num_chunks = F::kGroups * walk.chunks_per_group;
    const int64_t source_bytes = Source<F>::unit_bytes(walk.chunks_per_group);
    for (int64_t u = 0; u < walk.num_units; ++u) {
        uint8_t* unit = block + u * walk.unit_bytes;
        for (int64_t output = 0; output < count; ++output) {
            const uint8_t* from = source + (output * walk.num_units + u) * source_bytes;
            Source<F>::put_header(unit, output, from);
            uint8_t* planes = unit + F::kHeaderBytes + output / kLanes * F::kVectorBytes + output % kLanes * 4;
            for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
                uint32_t words[kSteps];
                Source<F>::take_chunk(words, from, chunk);
                F::put(planes + chunk * F::kChunkBytes, words);
            }
        }
    }
}

// ---- Floats to blocks ---------------------------------------------------------------------------------------------

MOTET_INLINE f32x16 negative(const f32x16& v) { return f32x16{} - v; }

// scale = max|w| / 127, and w / scale rounded. values: padded with zeros to whole chunks.
void quantize_int8(uint8_t* out, const float* values, int64_t num_inputs) {
    i32x16 most = {};
    for (int64_t i = 0; i < num_inputs; i += kLanes) most = max(most, magnitude_bits(load(values + i)));
    const float scale = bit_cast<float>(largest(most)) / 127.0f;
    write(out, scale);
    const f32x16 divisor = broadcast(scale > 0.0f ? scale : 1.0f);
    for (int64_t i = 0; i < num_inputs; i += kLanes) store_bytes(out + 4 + i, nearest(load(values + i) / divisor));
}

MOTET_INLINE f16 halve(float value) {
    f16 lanes[kLanes];
    store(lanes, broadcast(value));
    return lanes[0];
}

MOTET_INLINE float widen_half(f16 value) {
    f16 lanes[kLanes] = {value};
    return load(lanes).part[0][0];
}

// Sixteen (w - m) / d, rounded, from 0 to 15.
MOTET_INLINE i32x16 nibbles(const float* values, const f32x16& m, const f32x16& d) {
    i32x16 q = nearest((load(values) - m) / d);
    for (int64_t i = 0; i < kParts; ++i) {
        q.part[i] = q.part[i] < 0 ? i32_part{} : q.part[i];
        q.part[i] = q.part[i] > 15 ? i32_part{} + 15 : q.part[i];
    }
    return q;
}

// d = (max - min) / 15 and m = min, rounded to float16; (w - m) / d rounded. Nibbles as in Q4_1.
void quantize_int4(uint8_t* out, const float* values, int64_t group) {
    f32x16 high = load(values), low = negative(high);
    for (int64_t i = kLanes; i < group; i += kLanes) {
        high = max(load(values + i), high);
        low = max(negative(load(values + i)), low);
    }
    const float least = -largest(low);
    const f16 scale = halve((largest(high) - least) / 15.0f), minimum = halve(least);
    write(out, scale);
    write(out + 2, minimum);
    const float step = widen_half(scale);
    const f32x16 m = broadcast(widen_half(minimum)), d = broadcast(step > 0.0f ? step : __builtin_inff());
    for (int64_t i = 0; i < group; i += kChunk) {
        i32x16 both = nibbles(values + i, m, d);
        const i32x16 upper = nibbles(values + i + kLanes, m, d);
        for (int64_t p = 0; p < kParts; ++p) both.part[p] |= upper.part[p] << 4;
        store_bytes(out + 4 + i / 2, both);
    }
}

template <class F>
void quantize_row(uint8_t* out, const float* values, const PackQuantizedArgs& a, const Walk<F>& walk) {
    const int64_t unit_bytes = Source<F>::unit_bytes(walk.chunks_per_group);
    if (a.kind == QuantKind::int8) return quantize_int8(out, values, a.num_inputs);
    for (int64_t u = 0; u < walk.num_units; ++u) quantize_int4(out + u * unit_bytes, values + u * a.group, a.group);
}

void widen_row(float* out, const PackQuantizedArgs& a, int64_t row) {
    const int64_t first = row * a.num_inputs;
    switch (a.dtype) {
        case DType::f32: return convert(out, static_cast<const float*>(a.source) + first, a.num_inputs);
        case DType::bf16: return convert(out, static_cast<const bf16*>(a.source) + first, a.num_inputs);
        case DType::f16: return convert(out, static_cast<const f16*>(a.source) + first, a.num_inputs);
    }
}

template <class F>
void pack(const PackQuantizedArgs& a) {
    const Walk<F> walk(a.num_inputs, a.group);
    const int64_t row_bytes = walk.num_units * Source<F>::unit_bytes(walk.chunks_per_group);
    const bool is_float = a.kind == QuantKind::int8 || a.kind == QuantKind::int4;
    uint8_t* blocks = static_cast<uint8_t*>(is_float ? std::calloc(size_t(kOutputs), size_t(row_bytes)) : nullptr);
    const int64_t num_values = (a.num_inputs + kChunk - 1) / kChunk * kChunk;
    float* values = static_cast<float*>(is_float ? std::calloc(size_t(num_values), sizeof(float)) : nullptr);
    if (is_float && !(blocks && values)) {
        std::free(blocks);
        std::free(values);
        throw std::bad_alloc();
    }
    const int64_t num_blocks = (a.num_outputs + kOutputs - 1) / kOutputs;
    for (int64_t block = 0; block < num_blocks; ++block) {
        uint8_t* out = static_cast<uint8_t*>(a.packed) + block * walk.block_bytes();
        const int64_t first = block * kOutputs, rest = a.num_outputs - first, count = rest < kOutputs ? rest : kOutputs;
        if (count < kOutputs) std::memset(out, 0, size_t(walk.block_bytes()));
        const uint8_t* source = static_cast<const uint8_t*>(a.source) + first * row_bytes;
        for (int64_t i = 0; is_float && i < count; ++i) {
            widen_row(values, a, first + i);
            quantize_row(blocks + i * row_bytes, values, a, walk);
        }
        pack_block(out, is_float ? blocks : source, count, walk);
    }
    std::free(blocks);
    std::free(values);
}

// ---- Back to floats -----------------------------------------------------------------------------------------------

// Weights of sixteen outputs are taken as the matrix kernel takes them, and one lane is kept.
struct Lane {
    int64_t vector;
    int64_t index;

    float of(const f32x16& v) const {
        float lanes[kLanes];
        store(lanes, v);
        return lanes[index];
    }

    uint32_t of(const u32x16& v) const {
        uint32_t lanes[kLanes];
        std::memcpy(lanes, &v, sizeof(lanes));
        return lanes[index];
    }
};

// Calls store_chunk(first input, 32 floats) for each chunk of an output.
template <class F, class StoreChunk>
void unpack_row(const uint8_t* unit, const Lane& lane, const Walk<F>& walk, const StoreChunk& store_chunk) {
    constexpr int kHalfSteps = kSteps / F::kHalves;
    constexpr int32_t kZero = F::kZeroShift == kNoZero ? 0 : 1 << (F::kZeroShift & 31);
    int64_t input = 0;
    for (int64_t u = 0; u < walk.num_units; ++u, unit += walk.unit_bytes) {
        const uint8_t* planes = unit + F::kHeaderBytes + lane.vector * F::kVectorBytes;
        for (int64_t c = 0; c < F::kGroups * walk.chunks_per_group; ++c, planes += F::kChunkBytes, input += kChunk) {
            const int64_t group = F::kGroups > 1 ? c : 0;
            float values[kChunk], scale = 0.0f, minimum = F::kHasMinima ? lane.of(F::minima(unit, group, lane.vector)) : 0.0f;
            for (int s = 0; s < kSteps; ++s) {
                if (s % kHalfSteps == 0) {
                    scale = lane.of(F::scales(unit, group * F::kHalves + s / kHalfSteps, lane.vector));
                }
                const uint32_t word = lane.of(F::weights(planes, s));
                for (int j = 0; j < 4; ++j) {
                    const float product = float(int32_t(word >> (8 * j) & 0xffu) - kZero) * scale;
                    values[4 * s + j] = F::kHasMinima ? product + minimum : product;
                }
            }
            store_chunk(input, values);
        }
    }
}

template <class F, class T>
void unpack_as(const UnpackQuantizedArgs& a, const Team& team) {
    const Walk<F> walk(a.num_inputs, a.group);
    const Range range = team.share(a.num_rows, 8);
    for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t n = a.rows[i];
        T* out = static_cast<T*>(a.out) + i * a.num_inputs;
        const Lane lane = {n % kOutputs / kLanes, n % kLanes};
        const uint8_t* block = static_cast<const uint8_t*>(a.weight) + n / kOutputs * walk.block_bytes();
        unpack_row(block, lane, walk, [&](int64_t input, const float* values) {
            const int64_t rest = a.num_inputs - input;
            convert(out + input, values, rest < kChunk ? rest : kChunk);
        });
        if (a.scale != 1.0f) scale_row(out, a.num_inputs, a.scale);
    }
}

}  // namespace

void pack_quantized(const PackQuantizedArgs& a) {
    with_format(a.kind, [&](auto format) { pack<decltype(format)>(a); });
}

int64_t packed_bytes(QuantKind kind, int64_t num_outputs, int64_t num_inputs, int64_t group) {
    int64_t num_bytes = 0;
    with_format(kind, [&](auto format) {
        num_bytes = (num_outputs + kOutputs - 1) / kOutputs * Walk<decltype(format)>(num_inputs, group).block_bytes();
    });
    return num_bytes;
}

void unpack_quantized(const UnpackQuantizedArgs& a, const Team& team) {
    with_format(a.kind, [&](auto format) {
        switch (a.dtype) {
            case DType::f32: return unpack_as<decltype(format), float>(a, team);
            case DType::bf16: return unpack_as<decltype(format), bf16>(a, team);
            case DType::f16: return unpack_as<decltype(format), f16>(a, team);
        }
    });
}

}  // namespace MOTET_ISA
}  // namespace motet
