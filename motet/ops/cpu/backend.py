"""The op backend of plain CPUs: C++ kernels, which can also be recorded.

Together they keep the exactness rule: a row's bits depend on that row alone.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from motet.ops.backend import ReferenceOps
from motet.ops.cpu.activation import activation, activation_mul, soft_cap
from motet.ops.cpu.greedy import greedy
from motet.ops.cpu.library import is_available
from motet.ops.cpu.linear import embedding, linear, linear_f32, quantize_rows
from motet.ops.cpu.lora import lora
from motet.ops.cpu.moe import moe
from motet.ops.cpu.norm import layer_norm, rms_norm
from motet.ops.cpu.packing import PackedLinear, pack_experts, pack_linear
from motet.ops.cpu.rope import qkv_heads
from motet.ops.cpu.rows import add, select_rows
from motet.ops.cpu.target import Target

__all__ = ["CpuOps", "is_available"]


class CpuOps(ReferenceOps):
    """Its ops run at once, or become nodes of the program that `target` records."""

    name = "cpu"
    pack_linear = staticmethod(pack_linear)
    pack_experts = staticmethod(pack_experts)

    def __init__(self) -> None:
        super().__init__()
        self.target = target = Target()
        self.linear = partial(linear, target)
        self.linear_f32 = partial(linear_f32, target)
        self.embedding = partial(embedding, target)
        self.quantize_rows = partial(quantize_rows, target)
        self.add = partial(add, target)
        self.select_rows = partial(select_rows, target)
        self.rms_norm = partial(rms_norm, target)
        self.layer_norm = partial(layer_norm, target)
        self.activation = partial(activation, target)
        self.activation_mul = partial(activation_mul, target)
        self.soft_cap = partial(soft_cap, target)
        self.greedy = partial(greedy, target)
        self.qkv_heads = partial(qkv_heads, target)
        self.logits = self._logits
        self.moe = partial(moe, target)
        self.lora = partial(lora, target)

    def _logits(self, x: Tensor, weight: PackedLinear, bias: Tensor | None = None, cap: float | None = None) -> Tensor:
        out = self.linear_f32(x, weight, bias)
        return out if cap is None else self.soft_cap(out, cap)
