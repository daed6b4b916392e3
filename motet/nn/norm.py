"""Normalisation layers. Their weights stay in float32 whatever the model's dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.nn.context import BuildContext


class RMSNorm:
    """Zhang and Sennrich 2019. `offset` is added to the stored weight (Gemma stores w - 1)."""

    def __init__(self, ctx: BuildContext, name: str, width: int, eps: float, offset: float = 0.0) -> None:
        self.ops = ctx.ops
        self.eps = eps
        self.weight = ctx.vector(f"{name}.weight", width, torch.float32) + offset

    def __call__(self, x: Tensor) -> Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)


class LayerNorm:
    """Ba et al. 2016."""

    def __init__(self, ctx: BuildContext, name: str, width: int, eps: float, bias: bool = True) -> None:
        self.ops = ctx.ops
        self.eps = eps
        self.weight = ctx.vector(f"{name}.weight", width, torch.float32)
        self.bias = ctx.vector(f"{name}.bias", width, torch.float32) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps)
