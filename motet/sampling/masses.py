"""The softmax in integers: the mass of a token is e^(x - max x), a multiple of 2**-40.

Sums of integers do not depend on their order, and every float32 operation below is rounded by itself (no fused
multiply-add), so this is the definition, and a kernel gives the same bits:

    x = max(gap, -29)        gap = x - max x in float32; below -28.5 the mass is 0
    n = x * log2(e), rounded to the nearest integer, ties to even
    r = (x - n * 355 / 512) - n * (log(2) - 355 / 512)
    e = ((p(r) * r + 1) * r + 1) * 2**n     p by Horner's rule
    mass = e * 2**40, rounded to the nearest integer, ties to even

A row of up to 2**22 tokens fits 64 bits. The approximation is within 4 units in the last place of float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from motet.sampling.noise import log

UNIT = 2.0**-40
LEAST_GAP = -29.0
LOG2_E = float.fromhex("0x1.715476p0")
LN2_HIGH, LN2_LOW = 355 / 512, float.fromhex("-0x1.bd0106p-13")
# (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, fitted for the least relative error of e^r
COEFFICIENTS = [float.fromhex(c) for c in ("0x1.6a1a72p-10", "0x1.123fc6p-7", "0x1.555916p-5", "0x1.55548ap-3")]
COEFFICIENTS += [float.fromhex("0x1.fffffcp-2"), 1.0, 1.0]


def masses(logits: Tensor) -> Tensor:
    """float32 [R, V] -> int64 [R, V] in units of 2**-40; the likeliest token of a row has 2**40. Nothing is meant for
    rows without a finite maximum."""
    x = (logits - logits.amax(dim=1, keepdim=True)).clamp_(min=LEAST_GAP)
    n = (x * LOG2_E).round_()
    r = x.sub_(n * LN2_HIGH).sub_(n * LN2_LOW)
    p = torch.full_like(r, COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        p.mul_(r).add_(coefficient)
    power = ((n.to(torch.int32) + 127) << 23).view(torch.float32)
    return p.mul_(power).to(torch.float64).mul_(1 / UNIT).round_().to(torch.int64)


def normalisers(logits: Tensor) -> Tensor:
    """log(sum(e^x)) of each row: float32 [R, V] -> float64 [R], NaN where a row has no finite maximum."""
    peak = logits.amax(dim=1).to(torch.float64)
    total = masses(logits).sum(dim=1).to(torch.float64) * UNIT
    return torch.where(peak.isfinite(), peak + log(total), torch.nan)
