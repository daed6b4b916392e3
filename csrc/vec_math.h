// Functions of sixteen floats: no libm, so the bits are the same with every instruction set and compiler.
#pragma once

#include "vec.h"

namespace motet {
namespace MOTET_ISA {

// e^x for x <= 88, within 2 units in the last place; 0 below -87.33, where results would be subnormal.
// x = n ln 2 + r with |r| <= ln(2) / 2; e^r is 1 + r + r^2 p(r), p of degree 4 fitted for the least relative error.
MOTET_INLINE f32x16 exp(const f32x16& x) {
    // 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
    const f32x16 rounder = broadcast(0x1.8p23f);
    const f32x16 shifted = fma(x, broadcast(0x1.715476p0f), rounder);
    const f32x16 n = shifted - rounder;
    f32x16 r = fma(n, broadcast(-0x1.62e430p-1f), x);
    r = fma(n, broadcast(0x1.05c610p-29f), r);
    f32x16 p = broadcast(0x1.6a1a72p-10f);
    p = fma(p, r, broadcast(0x1.123fc6p-7f));
    p = fma(p, r, broadcast(0x1.555916p-5f));
    p = fma(p, r, broadcast(0x1.55548ap-3f));
    p = fma(p, r, broadcast(0x1.fffffcp-2f));
    p = fma(fma(p, r, broadcast(1.0f)), r, broadcast(1.0f));
    for (int64_t i = 0; i < kParts; ++i) {
        const u32_part power = (bit_cast<u32_part>(shifted.part[i]) + 127u) << 23;
        p.part[i] = x.part[i] < -87.33f ? f32_part{} : p.part[i] * bit_cast<f32_part>(power);
    }
    return p;
}

MOTET_INLINE float exp(float x) { return exp(broadcast(x)).part[0][0]; }

// Absolute error below 1e-7.
MOTET_INLINE f32x16 tanh(const f32x16& x) {
    f32x16 result;
    f32x16 twice = x;  // -2 |x|
    for (int64_t i = 0; i < kParts; ++i) twice.part[i] = x.part[i] > 0.0f ? x.part[i] * -2.0f : x.part[i] * 2.0f;
    const f32x16 e = exp(twice);
    const f32x16 magnitude = (broadcast(1.0f) - e) / (broadcast(1.0f) + e);
    for (int64_t i = 0; i < kParts; ++i) {
        result.part[i] = x.part[i] > 0.0f ? magnitude.part[i] : -magnitude.part[i];
    }
    return result;
}

// 1 - erf(x) for x >= 0, absolute error below 2e-7. Source: Abramowitz and Stegun 1964, 7.1.26.
MOTET_INLINE f32x16 erfc(const f32x16& x) {
    const f32x16 t = broadcast(1.0f) / fma(x, broadcast(0.3275911f), broadcast(1.0f));
    f32x16 p = broadcast(1.061405429f);
    p = fma(p, t, broadcast(-1.453152027f));
    p = fma(p, t, broadcast(1.421413741f));
    p = fma(p, t, broadcast(-0.284496736f));
    p = fma(p, t, broadcast(0.254829592f));
    return p * t * exp(x * x * -1.0f);
}

}  // namespace MOTET_ISA
}  // namespace motet
