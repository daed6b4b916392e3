// Sixteen float lanes on any instruction set: loads, stores, conversions and a sum in fixed order.
//
// The lane count is the same everywhere, in as many registers as it takes, so the order of additions, and with it every
// bit, is too. All of it lives in the namespace of its instruction set: an inline function shared between them could be
// linked from the wrong one.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#ifndef MOTET_ISA
#error "compile with -DMOTET_ISA=<name of the instruction set>"
#endif

#define MOTET_INLINE static inline __attribute__((always_inline))

namespace motet {
namespace MOTET_ISA {

#if defined(__AVX512F__)
constexpr int64_t kWidth = 16;  // floats in a register
#elif defined(__AVX2__)
constexpr int64_t kWidth = 8;
#else
constexpr int64_t kWidth = 4;
#endif

constexpr int64_t kLanes = 16;
constexpr int64_t kParts = kLanes / kWidth;

typedef float f32_part __attribute__((vector_size(kWidth * 4)));
typedef uint32_t u32_part __attribute__((vector_size(kWidth * 4)));
typedef uint16_t u16_part __attribute__((vector_size(kWidth * 2)));

struct f32x16 {
    f32_part part[kParts];
};

struct bf16 {
    uint16_t bits;
};

struct f16 {
    uint16_t bits;
};

template <class To, class From>
MOTET_INLINE To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

MOTET_INLINE f32x16 operator+(f32x16 a, const f32x16& b) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] += b.part[i];
    return a;
}

MOTET_INLINE f32x16 operator*(f32x16 a, const f32x16& b) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] *= b.part[i];
    return a;
}

MOTET_INLINE f32x16 operator*(f32x16 a, float b) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] *= b;
    return a;
}

MOTET_INLINE f32x16 operator-(f32x16 a, const f32x16& b) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] -= b.part[i];
    return a;
}

MOTET_INLINE f32x16 operator/(f32x16 a, const f32x16& b) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] /= b.part[i];
    return a;
}

MOTET_INLINE f32x16 broadcast(float value) {
    f32x16 v;
    for (int64_t i = 0; i < kParts; ++i) {
#if defined(__AVX512F__)
        v.part[i] = _mm512_set1_ps(value);
#elif defined(__AVX2__)
        v.part[i] = _mm256_set1_ps(value);
#else
        v.part[i] = f32_part{value, value, value, value};
#endif
    }
    return v;
}

// a * b + c, rounded once.
MOTET_INLINE f32x16 fma(const f32x16& a, const f32x16& b, f32x16 c) {
    for (int64_t i = 0; i < kParts; ++i) {
#if defined(__AVX512F__)
        c.part[i] = _mm512_fmadd_ps(a.part[i], b.part[i], c.part[i]);
#elif defined(__FMA__)
        c.part[i] = _mm256_fmadd_ps(a.part[i], b.part[i], c.part[i]);
#else
        for (int64_t j = 0; j < kWidth; ++j) c.part[i][j] = __builtin_fmaf(a.part[i][j], b.part[i][j], c.part[i][j]);
#endif
    }
    return c;
}

// Rounded once where the machine can do that at full speed; elsewhere twice, rather than in software.
MOTET_INLINE f32x16 multiply_add(const f32x16& a, const f32x16& b, const f32x16& c) {
#if defined(__FMA__) || defined(__FP_FAST_FMAF)
    return fma(a, b, c);
#else
    return a * b + c;
#endif
}

// The greater of each pair; b where one is NaN.
MOTET_INLINE f32x16 max(f32x16 a, const f32x16& b) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
    return a;
}

MOTET_INLINE f32x16 load(const float* p) {
    f32x16 v;
    for (int64_t i = 0; i < kParts; ++i) std::memcpy(&v.part[i], p + i * kWidth, sizeof(f32_part));
    return v;
}

MOTET_INLINE void store(float* p, const f32x16& v) {
    for (int64_t i = 0; i < kParts; ++i) std::memcpy(p + i * kWidth, &v.part[i], sizeof(f32_part));
}

MOTET_INLINE f32x16 load(const bf16* p) {
    f32x16 v;
    for (int64_t i = 0; i < kParts; ++i) {
        u16_part h;
        std::memcpy(&h, p + i * kWidth, sizeof(h));
#if defined(__AVX512F__)  // GCC 12 makes five instructions of the conversion
        const u32_part wide = bit_cast<u32_part>(_mm512_cvtepu16_epi32(bit_cast<__m256i>(h)));
#else
        const u32_part wide = __builtin_convertvector(h, u32_part);
#endif
        v.part[i] = bit_cast<f32_part>(wide << 16);
    }
    return v;
}

// Rounds to nearest even; a NaN stays one (the carry of the rounding could turn it into an infinity).
MOTET_INLINE void store(bf16* p, const f32x16& v) {
    for (int64_t i = 0; i < kParts; ++i) {
        const u32_part u = bit_cast<u32_part>(v.part[i]);
        const u32_part rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        const u32_part is_nan = bit_cast<u32_part>(v.part[i] != v.part[i]);
        const u16_part h = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0u), u16_part);
        std::memcpy(p + i * kWidth, &h, sizeof(h));
    }
}

#if defined(__F16C__)

#if defined(__AVX512F__)

MOTET_INLINE f32x16 load(const f16* p) { return {{_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}}; }

MOTET_INLINE void store(f16* p, const f32x16& v) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v.part[0], _MM_FROUND_TO_NEAREST_INT));
}

#else

MOTET_INLINE f32x16 load(const f16* p) {
    const auto* half = (const __m128i*)p;
    return {{_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))}};
}

MOTET_INLINE void store(f16* p, const f32x16& v) {
    auto* half = (__m128i*)p;
    _mm_storeu_si128(half, _mm256_cvtps_ph(v.part[0], _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(half + 1, _mm256_cvtps_ph(v.part[1], _MM_FROUND_TO_NEAREST_INT));
}

#endif

#else

MOTET_INLINE float to_float(f16 h) {
    const uint32_t sign = uint32_t(h.bits & 0x8000u) << 16;
    const uint32_t exponent = (h.bits >> 10) & 0x1fu;
    const uint32_t fraction = h.bits & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float
        const float magnitude = float(fraction) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    const uint32_t wide = exponent == 0x1fu ? 0xffu : exponent + 112u;
    const uint32_t quiet = exponent == 0x1fu && fraction ? 0x400000u : 0u;
    return bit_cast<float>(sign | (wide << 23) | (fraction << 13) | quiet);
}

// Rounds to nearest even.
MOTET_INLINE f16 to_half(float value) {
    const uint32_t u = bit_cast<uint32_t>(value);
    const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return f16{uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
    if (magnitude >= 0x477ff000u) return f16{uint16_t(sign | 0x7c00u)};  // from 65520 up: infinity
    if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 makes the float adder round to the subnormal grid
        const float shifted = bit_cast<float>(magnitude) + 0.5f;
        return f16{uint16_t(sign | (bit_cast<uint32_t>(shifted) - 0x3f000000u))};
    }
    const uint32_t rounded = magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u);
    return f16{uint16_t(sign | (rounded >> 13))};
}

MOTET_INLINE f32x16 load(const f16* p) {
    float lanes[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] = to_float(p[i]);
    return load(lanes);
}

MOTET_INLINE void store(f16* p, const f32x16& v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int64_t i = 0; i < kLanes; ++i) p[i] = to_half(lanes[i]);
}

#endif

// The first n < 16 elements; the other lanes are zero.
template <class T>
MOTET_INLINE f32x16 load_first(const T* p, int64_t n) {
    T lanes[kLanes] = {};
    std::memcpy(lanes, p, size_t(n) * sizeof(T));
    return load(lanes);
}

template <class T>
MOTET_INLINE void store_first(T* p, const f32x16& v, int64_t n) {
    T lanes[kLanes];
    store(lanes, v);
    std::memcpy(p, lanes, size_t(n) * sizeof(T));
}

// Copies a vector, rounded to another type.
template <class To, class From>
MOTET_INLINE void convert(To* to, const From* from, int64_t n) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
    if (i < n) store_first(to + i, load_first(from + i, n - i), n - i);
}

template <class T>
MOTET_INLINE void convert(T* to, const T* from, int64_t n) {
    std::memcpy(to, from, size_t(n) * sizeof(T));
}

// row *= scale, rounded to the type of the row.
template <class T>
MOTET_INLINE void scale_row(T* row, int64_t count, float scale) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(row + i, load(row + i) * scale);
    if (i < count) store_first(row + i, load_first(row + i, count - i) * scale, count - i);
}

// Adds lane i + 8 to lane i, then i + 4, i + 2, i + 1.
MOTET_INLINE float sum(const f32x16& v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

MOTET_INLINE float largest(const f32x16& v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(v.part[0]);
#else
    float lanes[kLanes];
    store(lanes, v);
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    }
    return lanes[0];
#endif
}

}  // namespace MOTET_ISA
}  // namespace motet
