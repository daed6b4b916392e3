// Sixteen int32 lanes, and dot products of bytes into them: the same integers on any instruction set.
#pragma once

#include "vec.h"

namespace motet {
namespace MOTET_ISA {

typedef int32_t i32_part __attribute__((vector_size(kWidth * 4)));
typedef int8_t i8_part __attribute__((vector_size(kWidth)));

struct i32x16 {
    i32_part part[kParts];
};

struct u32x16 {
    u32_part part[kParts];
};

// At any address.
template <class T>
MOTET_INLINE T read(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof(value));
    return value;
}

MOTET_INLINE u32x16 load_words(const void* p) {
    u32x16 v;
    for (int64_t i = 0; i < kParts; ++i) {
        std::memcpy(&v.part[i], static_cast<const uint8_t*>(p) + i * sizeof(u32_part), sizeof(u32_part));
    }
    return v;
}

// Words as the bits of four unsigned bytes each.
MOTET_INLINE u32x16 operator&(u32x16 a, uint32_t mask) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] &= mask;
    return a;
}

MOTET_INLINE u32x16 operator|(u32x16 a, const u32x16& b) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] |= b.part[i];
    return a;
}

MOTET_INLINE u32x16 operator>>(u32x16 a, int count) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] >>= count;
    return a;
}

MOTET_INLINE u32x16 operator<<(u32x16 a, int count) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] <<= count;
    return a;
}

MOTET_INLINE i32x16 broadcast(int32_t value) {
    i32x16 v;
    for (int64_t i = 0; i < kParts; ++i) {
#if defined(__AVX512F__)
        v.part[i] = (i32_part)_mm512_set1_epi32(value);
#elif defined(__AVX2__)
        v.part[i] = (i32_part)_mm256_set1_epi32(value);
#else
        v.part[i] = i32_part{value, value, value, value};
#endif
    }
    return v;
}

MOTET_INLINE f32x16 to_float(const i32x16& v) {
    f32x16 f;
    for (int64_t i = 0; i < kParts; ++i) f.part[i] = __builtin_convertvector(v.part[i], f32_part);
    return f;
}

MOTET_INLINE f32x16 load(const uint8_t* p) {
    f32x16 f;
    for (int64_t i = 0; i < kParts; ++i) {
#if defined(__AVX512F__)
        f.part[i] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
        f.part[i] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + i * kWidth))));
#else
        for (int64_t j = 0; j < kWidth; ++j) f.part[i][j] = float(p[i * kWidth + j]);
#endif
    }
    return f;
}

MOTET_INLINE f32x16 load(const int8_t* p) {
    f32x16 f;
    for (int64_t i = 0; i < kParts; ++i) {
#if defined(__AVX512F__)
        f.part[i] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
        f.part[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + i * kWidth))));
#else
        for (int64_t j = 0; j < kWidth; ++j) f.part[i][j] = float(p[i * kWidth + j]);
#endif
    }
    return f;
}

MOTET_INLINE i32x16 magnitude_bits(const f32x16& v) {
    i32x16 bits;
    for (int64_t i = 0; i < kParts; ++i) bits.part[i] = bit_cast<i32_part>(v.part[i]) & 0x7fffffff;
    return bits;
}

MOTET_INLINE i32x16 max(i32x16 a, const i32x16& b) {
    for (int64_t i = 0; i < kParts; ++i) a.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
    return a;
}

MOTET_INLINE int32_t largest(const i32x16& v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)v.part[0]);
#else
    int32_t most = v.part[0][0];
    for (int64_t i = 1; i < kLanes; ++i) {
        const int32_t lane = v.part[i / kWidth][i % kWidth];
        most = lane > most ? lane : most;
    }
    return most;
#endif
}

// The first `count` elements, at most sixteen; the other lanes are zero.
template <class T>
MOTET_INLINE f32x16 load_up_to(const T* p, int64_t count) {
    if (count >= kLanes) return load(p);
    return count > 0 ? load_first(p, count) : f32x16{};
}

// The bits of the greatest |x|. Without their signs, floats are in the order of their bits, infinity and NaN above all
// others.
template <class T>
MOTET_INLINE int32_t greatest_magnitude(const T* x, int64_t count) {
    i32x16 most = {};
    for (int64_t i = 0; i < count; i += kLanes) most = max(most, magnitude_bits(load_up_to(x + i, count - i)));
    return largest(most);
}

MOTET_INLINE int32_t sum(const i32x16& v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)v.part[0]);
#else
    int32_t total = 0;
    for (int64_t i = 0; i < kLanes; ++i) total += v.part[i / kWidth][i % kWidth];
    return total;
#endif
}

// The low byte of each lane.
MOTET_INLINE void store_bytes(uint8_t* p, const i32x16& v) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v.part[0]));
#else
    for (int64_t i = 0; i < kParts; ++i) {
        const i8_part bytes = __builtin_convertvector(v.part[i], i8_part);
        std::memcpy(p + i * kWidth, &bytes, sizeof(bytes));
    }
#endif
}

// The nearest integers, of halves the even one; |v| < 2^22.
MOTET_INLINE i32x16 nearest(const f32x16& v) {
    const f32x16 shifted = v + broadcast(0x1.8p23f);  // which leaves the integer in the low bits
    i32x16 q;
    for (int64_t i = 0; i < kParts; ++i) q.part[i] = bit_cast<i32_part>(shifted.part[i]) - 0x4b400000;
    return q;
}

// ---- sums += w . x: four unsigned bytes of w in each lane, times four signed bytes that all lanes share -----------

#if defined(__AVX2__) && !defined(__AVX512VNNI__)

// sums += the 32-bit sums of pairs of 16-bit sums of pairs of products, times `factor`.
MOTET_INLINE void add_products(i32x16& sums, const u32x16& w, int32_t x, short factor) {
    for (int64_t i = 0; i < kParts; ++i) {
#if defined(__AVX512F__)
        const __m512i pairs = _mm512_maddubs_epi16((__m512i)w.part[i], _mm512_set1_epi32(x));
        sums.part[i] += (i32_part)_mm512_madd_epi16(pairs, _mm512_set1_epi16(factor));
#else
        const __m256i pairs = _mm256_maddubs_epi16((__m256i)w.part[i], _mm256_set1_epi32(x));
        sums.part[i] += (i32_part)_mm256_madd_epi16(pairs, _mm256_set1_epi16(factor));
#endif
    }
}

// Sums of two products must fit 16 bits, or they saturate: those of 7 bits do. Eight are upper * 2 + lowest.
template <int bits>
struct ByteWeights {
    u32x16 bytes;

    MOTET_INLINE ByteWeights of(const u32x16& w) { return {w}; }

    MOTET_INLINE void add(i32x16& sums, const ByteWeights& w, int32_t x) { add_products(sums, w.bytes, x, 1); }
};

template <>
struct ByteWeights<8> {
    u32x16 upper;
    u32x16 lowest;

    MOTET_INLINE ByteWeights of(const u32x16& w) { return {(w >> 1) & 0x7f7f7f7fu, w & 0x01010101u}; }

    MOTET_INLINE void add(i32x16& sums, const ByteWeights& w, int32_t x) {
        add_products(sums, w.upper, x, 2);
        add_products(sums, w.lowest, x, 1);
    }
};

#else

template <int bits>
struct ByteWeights {
    u32x16 bytes;

    MOTET_INLINE ByteWeights of(const u32x16& w) { return {w}; }

    MOTET_INLINE void add(i32x16& sums, const ByteWeights& w, int32_t x) {
#if defined(__AVX512VNNI__)
        sums.part[0] = (i32_part)_mm512_dpbusd_epi32((__m512i)sums.part[0], (__m512i)w.bytes.part[0], _mm512_set1_epi32(x));
#else
        for (int j = 0; j < 4; ++j) {
            const int32_t input = int8_t(uint32_t(x) >> (8 * j));
            for (int64_t i = 0; i < kParts; ++i) {
                sums.part[i] += (i32_part)((w.bytes.part[i] >> (8 * j)) & 0xffu) * input;
            }
        }
#endif
    }
};

#endif

}  // namespace MOTET_ISA
}  // namespace motet
