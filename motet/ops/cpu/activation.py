"""Activations on the C++ kernels: elementwise, and independent of where in the tensor a value stands."""

from __future__ import annotations

from torch import Tensor

from motet.ops.cpu.library import DTYPE_CODES
from motet.ops.cpu.target import Target

KIND_CODES = {"silu": 0, "gelu_tanh": 1, "gelu": 3, "relu": 4}
SOFT_CAP = 2


def _run(target: Target, x: Tensor, num_cols: int, is_gated: bool, kind: int, cap: float = 0.0) -> Tensor:
    x = x.contiguous()
    out = target.empty(x, num_cols, dtype=x.dtype)
    target.calls.activation(
        out.data_ptr(), x.data_ptr(), target.num_rows(x), num_cols, is_gated, kind, cap, DTYPE_CODES[x.dtype]
    )
    return out


def activation(target: Target, x: Tensor, kind: str) -> Tensor:
    """See motet.ops.reference.activation; x [T, N]."""
    return _run(target, x, x.shape[-1], False, KIND_CODES[kind])


def activation_mul(target: Target, gate_up: Tensor, kind: str) -> Tensor:
    """See motet.ops.reference.activation."""
    return _run(target, gate_up, gate_up.shape[-1] // 2, True, KIND_CODES[kind])


def soft_cap(target: Target, x: Tensor, cap: float) -> Tensor:
    """x [T, N] -> cap * tanh(x / cap)."""
    return _run(target, x, x.shape[-1], False, SOFT_CAP, cap)
