"""RMSNorm on the C++ kernels. Exact: a row's bits depend on that row alone, on every instruction set."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.cpu.library import DTYPE_CODES, kernels


def _check(x: Tensor, weight: Tensor) -> None:
    if x.dtype not in DTYPE_CODES:
        raise ValueError(f"x must be float32, bfloat16 or float16, got {x.dtype}")
    if weight.dtype is not torch.float32 or weight.shape != x.shape[-1:]:
        raise ValueError(f"weight must be float32 [{x.shape[-1]}], got {weight.dtype} {list(weight.shape)}")
    if not (x.is_cpu and weight.is_cpu and x.is_contiguous() and weight.is_contiguous()):
        raise ValueError("x and weight must be contiguous CPU tensors")


def _check_residual(residual: Tensor, x: Tensor) -> None:
    if residual.dtype is not x.dtype or residual.shape != x.shape:
        raise ValueError(
            f"residual must be {x.dtype} {list(x.shape)} like x, got {residual.dtype} {list(residual.shape)}"
        )
    if not (residual.is_cpu and residual.is_contiguous()):
        raise ValueError("residual must be a contiguous CPU tensor")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See motet.ops.reference.norm. Raises ValueError for other dtypes, shapes and layouts."""
    _check(x, weight)
    out = torch.empty_like(x)
    width = x.shape[-1]
    kernels().rms_norm(
        out.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        x.numel() // max(width, 1),
        width,
        eps,
        DTYPE_CODES[x.dtype],
        torch.get_num_threads(),
    )
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See motet.ops.reference.norm. Raises ValueError for other dtypes, shapes and layouts."""
    _check(x, weight)
    _check_residual(residual, x)
    out, new_residual = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    kernels().add_rms_norm(
        out.data_ptr(),
        new_residual.data_ptr(),
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        x.numel() // max(width, 1),
        width,
        eps,
        DTYPE_CODES[x.dtype],
        torch.get_num_threads(),
    )
    return out, new_residual
