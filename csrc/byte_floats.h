// Types of one byte that the KV cache may hold: int8, and FP8 E4M3 of the Open Compute Project ("OCP 8-bit Floating
// Point Specification", 2023): sign, four bits of exponent with bias 7, three of fraction; no infinities, magnitudes up
// to 448, and a NaN in 0x7f and 0xff. A vector of them has a scale: what it stands for is byte * scale.
#pragma once

#include <type_traits>

#include "int_vec.h"

namespace motet {
namespace MOTET_ISA {

struct i8 {
    uint8_t bits;
};

struct f8 {
    uint8_t bits;
};

template <class T>
constexpr float kGreatest = 0.0f;  // that a byte holds; 0: T is no type of one byte
template <>
constexpr float kGreatest<i8> = 127.0f;
template <>
constexpr float kGreatest<f8> = 448.0f;

template <class T>
constexpr bool kIsScaled = kGreatest<T> != 0.0f;

// The uppermost byte of each word as a float.
template <class T>
MOTET_INLINE f32_part from_top_byte(u32_part words) {
    if constexpr (std::is_same_v<T, i8>) {
        return __builtin_convertvector(bit_cast<i32_part>(words) >> 24, f32_part);
    } else {
        // Exponent and fraction move to where a float has them, and the bias of 7 becomes 127. That is right for normal
        // numbers, h. Subnormals are 2 h - 2^-6, less than h for them alone. (No float here is subnormal itself, so that
        // flushing those to zero would change nothing.)
        const u32_part magnitude = (words >> 4) & 0x07f00000u;
        const f32_part h = bit_cast<f32_part>(magnitude + 0x3c000000u);
        const f32_part low = h + h - 0x1p-6f;
        const u32_part is_nan = bit_cast<u32_part>(bit_cast<i32_part>(magnitude) == 0x07f00000);
        const u32_part value = bit_cast<u32_part>(low < h ? low : h);
        return bit_cast<f32_part>(value | (words & 0x80000000u) | is_nan);
    }
}

MOTET_INLINE f32x16 load(const i8* p) { return load(reinterpret_cast<const int8_t*>(p)); }

MOTET_INLINE f32x16 load(const f8* p) {
    f32x16 f;
    for (int64_t i = 0; i < kParts; ++i) {
        u32_part words;
#if defined(__AVX512F__)
        words = bit_cast<u32_part>(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
        words = bit_cast<u32_part>(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + i * kWidth))));
#else
        for (int64_t j = 0; j < kWidth; ++j) words[j] = p[i * kWidth + j].bits;
#endif
        f.part[i] = from_top_byte<f8>(words << 24);
    }
    return f;
}

// |v| <= 127.5, rounded to nearest even.
MOTET_INLINE void store(i8* p, const f32x16& v) { store_bytes(&p->bits, nearest(v)); }

// Rounds to nearest even; what is too great becomes 448, a NaN stays one.
MOTET_INLINE void store(f8* p, const f32x16& v) {
    i32x16 codes;
    for (int64_t i = 0; i < kParts; ++i) {
        const u32_part u = bit_cast<u32_part>(v.part[i]), magnitude = u & 0x7fffffffu;
        const i32_part order = bit_cast<i32_part>(magnitude);
        const u32_part rounded = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
        // Below 2^-6 lie the subnormals, 2^-9 apart, as floats from 2^14 are: adding that rounds to them.
        const f32_part shifted = bit_cast<f32_part>(magnitude) + 0x1p14f;
        const i32_part low = bit_cast<i32_part>(shifted) - 0x46800000;
        i32_part code = order < 0x3c800000 ? low : bit_cast<i32_part>(rounded);
        code = code > 0x7e ? 0x7e : code;
        code = order > 0x7f800000 ? 0x7f : code;
        codes.part[i] = code | bit_cast<i32_part>((u >> 24) & 0x80u);
    }
    store_bytes(&p->bits, codes);
}

// Rounds a vector to bytes, the greatest magnitude to the greatest there is. Returns the scale: 0 for a vector of
// (almost) nothing, NaN for one with a NaN or an infinity, and then its bytes are 0.
template <class Byte, class T>
MOTET_INLINE float store_scaled(Byte* out, const T* x, int64_t n) {
    const int32_t bits = greatest_magnitude(x, n);
    const float greatest = bit_cast<float>(bits);
    if (bits >= 0x7f800000 || greatest < 0x1p-100f) {
        std::memset(out, 0, size_t(n));
        return bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
    }
    const float factor = kGreatest<Byte> / greatest;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, load(x + i) * factor);
    if (i < n) store_first(out + i, load_first(x + i, n - i) * factor, n - i);
    return greatest / kGreatest<Byte>;
}

template <class Byte>
MOTET_INLINE void load_scaled(float* out, const Byte* x, int64_t n, float scale) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, load(x + i) * scale);
    if (i < n) store_first(out + i, load_first(x + i, n - i) * scale, n - i);
}

}  // namespace MOTET_ISA
}  // namespace motet
