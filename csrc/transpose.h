// Transposes a square of as many rows as a register has floats.
#pragma once

#include "vec.h"

namespace motet {
namespace MOTET_ISA {

#if defined(__AVX512F__)

MOTET_INLINE f32_part unpack_low(f32_part a, f32_part b) { return _mm512_unpacklo_ps(a, b); }
MOTET_INLINE f32_part unpack_high(f32_part a, f32_part b) { return _mm512_unpackhi_ps(a, b); }

MOTET_INLINE f32_part unpack_low_pairs(f32_part a, f32_part b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

MOTET_INLINE f32_part unpack_high_pairs(f32_part a, f32_part b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

#elif defined(__AVX2__)

MOTET_INLINE f32_part unpack_low(f32_part a, f32_part b) { return _mm256_unpacklo_ps(a, b); }
MOTET_INLINE f32_part unpack_high(f32_part a, f32_part b) { return _mm256_unpackhi_ps(a, b); }

MOTET_INLINE f32_part unpack_low_pairs(f32_part a, f32_part b) {
    return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}

MOTET_INLINE f32_part unpack_high_pairs(f32_part a, f32_part b) {
    return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}

#endif

// Columns become rows: element j of rows[i] becomes element i of rows[j].
MOTET_INLINE void transpose(f32_part (&rows)[kWidth]) {
#if defined(__AVX2__)
    f32_part quads[kWidth];  // quads[4 i + j], 128-bit lane l: column 4 l + j of rows 4 i to 4 i + 3
    for (int64_t i = 0; i < kWidth; i += 4) {
        const f32_part low01 = unpack_low(rows[i], rows[i + 1]), high01 = unpack_high(rows[i], rows[i + 1]);
        const f32_part low23 = unpack_low(rows[i + 2], rows[i + 3]), high23 = unpack_high(rows[i + 2], rows[i + 3]);
        quads[i] = unpack_low_pairs(low01, low23);
        quads[i + 1] = unpack_high_pairs(low01, low23);
        quads[i + 2] = unpack_low_pairs(high01, high23);
        quads[i + 3] = unpack_high_pairs(high01, high23);
    }
    for (int64_t j = 0; j < 4; ++j) {
#if defined(__AVX512F__)
        const __m512 even01 = _mm512_shuffle_f32x4(quads[j], quads[4 + j], 0x88);
        const __m512 odd01 = _mm512_shuffle_f32x4(quads[j], quads[4 + j], 0xdd);
        const __m512 even23 = _mm512_shuffle_f32x4(quads[8 + j], quads[12 + j], 0x88);
        const __m512 odd23 = _mm512_shuffle_f32x4(quads[8 + j], quads[12 + j], 0xdd);
        rows[j] = _mm512_shuffle_f32x4(even01, even23, 0x88);
        rows[4 + j] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
        rows[8 + j] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
        rows[12 + j] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
#else
        rows[j] = _mm256_permute2f128_ps(quads[j], quads[4 + j], 0x20);
        rows[4 + j] = _mm256_permute2f128_ps(quads[j], quads[4 + j], 0x31);
#endif
    }
#else
    for (int64_t i = 0; i < kWidth; ++i) {
        for (int64_t j = i + 1; j < kWidth; ++j) {
            const float upper = rows[i][j];
            rows[i][j] = rows[j][i];
            rows[j][i] = upper;
        }
    }
#endif
}

}  // namespace MOTET_ISA
}  // namespace motet
