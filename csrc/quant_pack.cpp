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
MOTET_INLINE T read(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof(value));
    return value;
}

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

struct Extent {
    float low;
    float high;
};

MOTET_INLINE Extent extent(const float* values, int64_t count) {
    Extent e = {values[0], values[0]};
    for (int64_t i = 1; i < count; ++i) {
        e.low = values[i] < e.low ? values[i] : e.low;
        e.high = values[i] > e.high ? values[i] : e.high;
    }
    return e;
}

// To the nearest integer, of halves the even one; |value| < 2^22.
MOTET_INLINE float nearest(float value) { return (value + 0x1.8p23f) - 0x1.8p23f; }

// scale = max|w| / 127, and w / scale rounded.
void quantize_int8(uint8_t* out, const float* values, int64_t num_inputs) {
    const Extent e = extent(values, num_inputs);
    const float scale = (e.high > -e.low ? e.high : -e.low) / 127.0f;
    write(out, scale);
    for (int64_t i = 0; i < num_inputs; ++i) out[4 + i] = uint8_t(int8_t(nearest(values[i] / (scale > 0.0f ? scale : 1.0f))));
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

// d = (max - min) / 15 and m = min, rounded to float16; (w - m) / d rounded. Nibbles as in Q4_1.
void quantize_int4(uint8_t* out, const float* values, int64_t group) {
    const Extent e = extent(values, group);
    const f16 scale = halve((e.high - e.low) / 15.0f), minimum = halve(e.low);
    write(out, scale);
    write(out + 2, minimum);
    const float m = widen_half(minimum), d = widen_half(scale), divisor = d > 0.0f ? d : 1.0f;
    for (int64_t i = 0; i < group; ++i) {
        const float q = d > 0.0f ? nearest((values[i] - m) / divisor) : 0.0f;
        const uint8_t nibble = uint8_t(q < 0.0f ? 0.0f : q > 15.0f ? 15.0f : q);
        uint8_t& byte = out[4 + i / 32 * 16 + i % 16];
        byte = i % 32 < 16 ? nibble : uint8_t(byte | nibble << 4);
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
    float* values = static_cast<float*>(is_float ? std::malloc(size_t(a.num_inputs) * sizeof(float)) : nullptr);
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
