"""The op backend of plain CPUs: C++ kernels for all that adds up, torch for what only copies or works elementwise.

Together they keep the exactness rule: a row's bits depend on that row alone.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from motet.ops.backend import ReferenceOps
from motet.ops.cpu import activation as _activation
from motet.ops.cpu import linear as _linear
from motet.ops.cpu import norm as _norm
from motet.ops.cpu.library import is_available
from motet.ops.reference import moe as _moe
from motet.ops.reference import rope as _rope

__all__ = ["CpuOps", "is_available"]


def _logits(
    x: Tensor, weight: _linear.PackedLinear, bias: Tensor | None = None, soft_cap: float | None = None
) -> Tensor:
    out = _linear.linear_f32(x, weight, bias)
    return out if soft_cap is None else _activation.soft_cap(out, soft_cap)


def _feed_forward(x: Tensor, gate_up: _linear.PackedLinear, down: _linear.PackedLinear, act: str) -> Tensor:
    return _linear.linear(_activation.activation_mul(_linear.linear(x, gate_up), act), down)


class CpuOps(ReferenceOps):
    name = "cpu"

    pack_linear = staticmethod(_linear.pack_linear)
    linear = staticmethod(_linear.linear)
    logits = staticmethod(_logits)
    embedding = staticmethod(_linear.embedding)
    rms_norm = staticmethod(_norm.rms_norm)
    activation = staticmethod(_activation.activation)
    activation_mul = staticmethod(_activation.activation_mul)
    qkv_heads = staticmethod(partial(_rope.qkv_heads, norm=_norm.rms_norm))
    moe = staticmethod(partial(_moe.moe, feed_forward=_feed_forward))
