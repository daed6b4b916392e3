"""RMSNorm and LayerNorm on the C++ kernels. Exact: a row's bits depend on that row alone, on every instruction set."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.cpu.library import DTYPE_CODES
from motet.ops.cpu.target import Target


def _check(x: Tensor, weight: Tensor, name: str = "weight") -> None:
    if x.dtype not in DTYPE_CODES:
        raise ValueError(f"x must be float32, bfloat16 or float16, got {x.dtype}")
    if weight.dtype is not torch.float32 or x.dim() != 2 or weight.shape != x.shape[1:]:
        raise ValueError(f"{name} must be float32 [{x.shape[-1]}], got {weight.dtype} {list(weight.shape)}")
    if not (x.is_cpu and weight.is_cpu and x.is_contiguous() and weight.is_contiguous()):
        raise ValueError(f"x and {name} must be contiguous CPU tensors")


def rms_norm(target: Target, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See motet.ops.reference.norm. Raises ValueError for other dtypes, shapes and layouts."""
    _check(x, weight)
    width = x.shape[1]
    out = target.empty(x, width, dtype=x.dtype)
    target.calls.rms_norm(
        out.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        target.num_rows(x),
        width,
        eps,
        DTYPE_CODES[x.dtype],
    )
    return out


def layer_norm(target: Target, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """See motet.ops.reference.layer_norm. Raises ValueError for other dtypes, shapes and layouts."""
    _check(x, weight)
    if bias is not None:
        _check(x, bias, "bias")
    width = x.shape[1]
    out = target.empty(x, width, dtype=x.dtype)
    target.calls.layer_norm(
        out.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        target.num_rows(x),
        width,
        eps,
        DTYPE_CODES[x.dtype],
    )
    return out
