"""RMSNorm: the definition, with its samples and tolerance."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.registry import OpSpec, Sample, define_op


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019) over the last dimension: x / sqrt(mean(x^2) + eps) * weight.

    x: [T, H] float32, bfloat16 or float16; weight: float32 [H]. Computed in float32, rounded once to x's dtype.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight).to(x.dtype)


WIDTHS = (1, 7, 40, 576, 4099)  # odd ones too: a tail of every length must be right
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-5


def random_rows(num_rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """x [num_rows, width] whose rows differ in scale, and a weight [width]."""
    generator = torch.Generator().manual_seed(seed + width)
    scale = torch.logspace(-3, 2, num_rows).unsqueeze(1)
    x = torch.randn(num_rows, width, generator=generator) * scale
    weight = 1 + 0.5 * torch.randn(width, generator=generator)
    return x.to(dtype), weight


def _samples() -> list[Sample]:
    return [
        Sample(f"{dtype}-{width}".removeprefix("torch."), (*random_rows(5, width, dtype), EPS))
        for dtype in DTYPES
        for width in WIDTHS
    ]


# The order of additions is free in the definition: some units in the last place of float32, and then one rounding.
TOLERANCE = {torch.float32: (2e-6, 1e-7), torch.bfloat16: (2**-7, 1e-30), torch.float16: (2**-10, 2**-24)}

RMS_NORM = define_op(OpSpec("rms_norm", rms_norm, _samples, TOLERANCE))
