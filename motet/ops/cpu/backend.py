"""The op backend of plain CPUs: C++ kernels for all that adds up, torch for what only copies or works elementwise.

Together they keep the exactness rule: a row's bits depend on that row alone.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from motet.ops.backend import ReferenceOps
from motet.ops.cpu.activation import activation, activation_mul, soft_cap
from motet.ops.cpu.library import is_available
from motet.ops.cpu.linear import PackedLinear, embedding, linear, linear_f32, pack_linear
from motet.ops.cpu.norm import rms_norm
from motet.ops.cpu.rope import qkv_heads
from motet.ops.reference.moe import moe

__all__ = ["CpuOps", "is_available"]


def logits(x: Tensor, weight: PackedLinear, bias: Tensor | None = None, cap: float | None = None) -> Tensor:
    out = linear_f32(x, weight, bias)
    return out if cap is None else soft_cap(out, cap)


def feed_forward(x: Tensor, gate_up: PackedLinear, down: PackedLinear, act: str) -> Tensor:
    return linear(activation_mul(linear(x, gate_up), act), down)


class CpuOps(ReferenceOps):
    name = "cpu"

    pack_linear = staticmethod(pack_linear)
    linear = staticmethod(linear)
    logits = staticmethod(logits)
    embedding = staticmethod(embedding)
    rms_norm = staticmethod(rms_norm)
    activation = staticmethod(activation)
    activation_mul = staticmethod(activation_mul)
    qkv_heads = staticmethod(qkv_heads)
    moe = staticmethod(partial(moe, feed_forward=feed_forward))
