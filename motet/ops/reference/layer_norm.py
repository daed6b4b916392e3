"""Layer normalisation: the definition, with its samples and tolerance."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from motet.ops.reference.norm import DTYPES, EPS, WIDTHS, random_rows
from motet.ops.registry import OpSpec, Sample, define_op


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm (Ba et al. 2016) over the last dimension of x [T, H] in float32, rounded once.

    weight, bias: float32 [H].
    """
    return F.layer_norm(x.float(), (x.shape[-1],), weight, bias, eps).to(x.dtype)


def _samples() -> list[Sample]:
    samples = []
    for dtype in DTYPES:
        for width in WIDTHS:
            x, weight = random_rows(5, width, dtype)
            bias = torch.linspace(-2, 2, width) if width % 2 else None
            samples.append(
                Sample(
                    f"{dtype}-{width}".removeprefix("torch."), (x + x.abs().mean(1, keepdim=True), weight, bias, EPS)
                )
            )
    return samples


# The mean is subtracted from values of its own size: what it rounds off counts more than in RMSNorm.
TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (2**-7, 2e-5), torch.float16: (2**-9, 2e-5)}

LAYER_NORM = define_op(OpSpec("layer_norm", layer_norm, _samples, TOLERANCE))
