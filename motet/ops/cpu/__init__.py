"""Ops as C++ kernels (csrc/), for CPU tensors in dense buffers.

`is_available()` tells whether this installation has them; the functions raise UnsupportedError where it has not.
"""

from __future__ import annotations

from motet.ops.cpu.activation import activation, activation_mul, soft_cap
from motet.ops.cpu.library import is_available, isa
from motet.ops.cpu.linear import embedding, linear, linear_f32, pack_linear
from motet.ops.cpu.norm import add_rms_norm, rms_norm
from motet.ops.cpu.rope import qkv_heads
from motet.ops.reference.activation import ACTIVATION, ACTIVATION_MUL
from motet.ops.reference.linear import LINEAR, LOGITS
from motet.ops.reference.norm import ADD_RMS_NORM, RMS_NORM
from motet.ops.reference.rope import QKV_HEADS
from motet.ops.registry import implement_op

__all__ = [
    "activation",
    "activation_mul",
    "add_rms_norm",
    "embedding",
    "is_available",
    "isa",
    "linear",
    "linear_f32",
    "pack_linear",
    "qkv_heads",
    "rms_norm",
    "soft_cap",
]

if is_available():
    implement_op(RMS_NORM, "cpu", rms_norm)
    implement_op(ADD_RMS_NORM, "cpu", add_rms_norm)
    implement_op(QKV_HEADS, "cpu", qkv_heads)
    implement_op(ACTIVATION, "cpu", activation)
    implement_op(ACTIVATION_MUL, "cpu", activation_mul)
    implement_op(LINEAR, "cpu", lambda x, weight, bias, residual: linear(x, pack_linear(weight), bias, residual))
    implement_op(LOGITS, "cpu", lambda x, weight, bias: linear_f32(x, pack_linear(weight), bias))
