"""Activations on the C++ kernels: elementwise, and independent of where in the tensor a value stands."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.cpu.library import DTYPE_CODES, kernels
from motet.ops.reference import activation as reference

KIND_CODES = {"silu": 0, "gelu_tanh": 1}
SOFT_CAP = 2


def _run(x: Tensor, num_cols: int, is_gated: bool, kind: int, cap: float = 0.0) -> Tensor:
    x = x.contiguous()
    out = torch.empty(*x.shape[:-1], num_cols, dtype=x.dtype)
    kernels().activation(
        out.data_ptr(),
        x.data_ptr(),
        out.numel() // num_cols if num_cols else 0,
        num_cols,
        is_gated,
        kind,
        cap,
        DTYPE_CODES[x.dtype],
        torch.get_num_threads(),
    )
    return out


def activation(x: Tensor, kind: str) -> Tensor:
    """See motet.ops.reference.activation."""
    if kind not in KIND_CODES:
        return reference.activation(x, kind)
    return _run(x, x.shape[-1], False, KIND_CODES[kind])


def activation_mul(gate_up: Tensor, kind: str) -> Tensor:
    """See motet.ops.reference.activation."""
    if kind not in KIND_CODES:
        return reference.activation_mul(gate_up, kind)
    return _run(gate_up, gate_up.shape[-1] // 2, True, KIND_CODES[kind])


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap)."""
    return _run(x, x.shape[-1], False, SOFT_CAP, cap)
