"""RMSNorm on the C++ kernels. Exact: a row's bits depend on that row alone, on every instruction set."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.cpu.library import DTYPE_CODES
from motet.ops.cpu.target import Target


def _check(x: Tensor, weight: Tensor) -> None:
    if x.dtype not in DTYPE_CODES:
        raise ValueError(f"x must be float32, bfloat16 or float16, got {x.dtype}")
    if weight.dtype is not torch.float32 or x.dim() != 2 or weight.shape != x.shape[1:]:
        raise ValueError(f"weight must be float32 [{x.shape[-1]}], got {weight.dtype} {list(weight.shape)}")
    if not (x.is_cpu and weight.is_cpu and x.is_contiguous() and weight.is_contiguous()):
        raise ValueError("x and weight must be contiguous CPU tensors")


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
