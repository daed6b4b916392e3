"""Ops as C++ kernels (csrc/), for CPU tensors in dense buffers.

`is_available()` tells whether this installation has them; the ops raise UnsupportedError where it has not.
"""

from __future__ import annotations

from torch import Tensor

from motet.ops.cpu.backend import CpuOps
from motet.ops.cpu.library import is_available, isa
from motet.ops.cpu.linear import split_records
from motet.ops.cpu.packing import PackedExperts
from motet.ops.reference.activation import ACTIVATION, ACTIVATION_MUL
from motet.ops.reference.greedy import GREEDY
from motet.ops.reference.layer_norm import LAYER_NORM
from motet.ops.reference.linear import LINEAR, LOGITS
from motet.ops.reference.lora import LORA
from motet.ops.reference.moe import MOE
from motet.ops.reference.norm import RMS_NORM
from motet.ops.reference.quantized import QUANTIZE_ROWS, QUANTIZED_LINEAR
from motet.ops.reference.rope import QKV_HEADS
from motet.ops.registry import implement_op

__all__ = ["CpuOps", "is_available", "isa"]

if is_available():
    ops = CpuOps()

    def _pack_experts(matrices: list[Tensor]) -> PackedExperts:
        return ops.pack_experts([ops.pack_linear(matrix) for matrix in matrices])

    implement_op(RMS_NORM, "cpu", ops.rms_norm)
    implement_op(GREEDY, "cpu", ops.greedy)
    implement_op(LAYER_NORM, "cpu", ops.layer_norm)
    implement_op(QKV_HEADS, "cpu", ops.qkv_heads)
    implement_op(ACTIVATION, "cpu", ops.activation)
    implement_op(ACTIVATION_MUL, "cpu", ops.activation_mul)
    implement_op(LINEAR, "cpu", lambda x, weight, *others: ops.linear(x, ops.pack_linear(weight), *others))
    implement_op(LOGITS, "cpu", lambda x, weight, bias: ops.logits(x, ops.pack_linear(weight), bias))
    implement_op(
        QUANTIZED_LINEAR,
        "cpu",
        lambda x, weight, scheme, *others: ops.linear(x, ops.pack_linear(weight, scheme=scheme), *others),
    )
    implement_op(
        MOE,
        "cpu",
        lambda x, scores, gate_up, down, *others: ops.moe(
            x, scores, _pack_experts(gate_up), _pack_experts(down), *others
        ),
    )
    implement_op(LORA, "cpu", lambda y, *others: ops.lora(y.clone(), *others))
    implement_op(QUANTIZE_ROWS, "cpu", lambda x, group: split_records(ops.quantize_rows(x, group), x.shape[1], group))
