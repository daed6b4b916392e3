"""Counter-based sampling noise: a pure function of (seed, position, lane), the same bits on every machine.

This module is the definition; a kernel must give the same bits. It uses 64-bit integers that wrap around, and float64
`+ - * /` rounded one by one (no fused multiply-add), so there is nothing for two machines to disagree about:

    mix(z)   SplitMix64's finaliser:  z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB;
             z ^= z >> 31
    mix'(z)  the same shape with shifts 33, 33, 33 and factors 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
    key      = mix(mix(seed) ^ mix'(position))
    bits     = mix(key + (lane + 1) * 0x9E3779B97F4A7C15)         the lane is the token id
    u        = ((bits >> 11) | 1) * 2**-53                        exact, and so is 1 - u; never 0 or 1
    noise    = -log(-log(u)), with `log` as spelled out below     standard Gumbel

Shifts are logical. Lane i of a key is output i of a SplitMix64 generator seeded with the key.

Sources: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (the generator, and mix');
Stafford's variant 13 for the constants of mix; Gumbel noise: Maddison, Tarlow, Minka, "A* sampling", NeurIPS 2014.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def as_int64(value: int) -> int:
    """The signed 64-bit integer with the same low 64 bits."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


GOLDEN_GAMMA = as_int64(0x9E3779B97F4A7C15)
MIX_FACTORS = as_int64(0xBF58476D1CE4E5B9), as_int64(0x94D049BB133111EB)
MIX_SHIFTS = 30, 27, 31
OTHER_FACTORS = as_int64(0xFF51AFD7ED558CCD), as_int64(0xC4CEB9FE1A85EC53)
OTHER_SHIFTS = 33, 33, 33
ULP = 2.0**-53
ATANH_TERMS = [1.0 / (2 * k + 1) for k in range(11)]  # the 12th is below half an ulp for any mantissa


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Logical right shift of int64; torch only has the arithmetic one."""
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1)


def _mix(bits: Tensor, factors: tuple[int, int], shifts: tuple[int, int, int]) -> Tensor:
    bits = (_shifted(bits, shifts[0]).bitwise_xor_(bits)).mul_(factors[0])
    bits = (_shifted(bits, shifts[1]).bitwise_xor_(bits)).mul_(factors[1])
    return _shifted(bits, shifts[2]).bitwise_xor_(bits)


def stream_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """The key of each token to be drawn. seeds, positions: int64 [...]; returns int64 [...]."""
    return _mix(
        _mix(seeds, MIX_FACTORS, MIX_SHIFTS) ^ _mix(positions, OTHER_FACTORS, OTHER_SHIFTS), MIX_FACTORS, MIX_SHIFTS
    )


def uniforms(keys: Tensor, lanes: Tensor) -> Tensor:
    """u in (0, 1), odd multiples of 2**-53. keys, lanes: int64, broadcast against each other; returns float64."""
    bits = _mix(keys + (lanes + 1) * GOLDEN_GAMMA, MIX_FACTORS, MIX_SHIFTS)
    return _shifted(bits, 11).bitwise_or_(1).to(torch.float64).mul_(ULP)


def log(x: Tensor) -> Tensor:
    """Natural logarithm of positive, normal float64 numbers, within 4 ulp.

    x = m * 2**e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), by its Taylor series in
    s**2 in Horner's order.
    """
    mantissa, exponent = torch.frexp(x)
    is_low = mantissa < math.sqrt(0.5)
    mantissa = torch.where(is_low, mantissa * 2.0, mantissa)
    exponent = (exponent - is_low.to(exponent.dtype)).to(torch.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = torch.full_like(s, ATANH_TERMS[-1])
    for term in reversed(ATANH_TERMS[:-1]):
        series = series * square + term
    return exponent * math.log(2.0) + (2.0 * s) * series


def exponentials(u: Tensor) -> Tensor:
    """Standard exponential variates -log(u): float64 [...] in (0, 37)."""
    return -log(u)


def gumbels(u: Tensor) -> Tensor:
    """Standard Gumbel variates -log(-log(u)): float64 [...] in (-3.7, 36.8)."""
    return -log(exponentials(u))
