"""Adding and selecting rows on the C++ kernels."""

from __future__ import annotations

from math import prod

from torch import Tensor

from motet.ops.cpu.library import DTYPE_CODES
from motet.ops.cpu.target import Target


def add(target: Target, x: Tensor, y: Tensor) -> Tensor:
    """See motet.ops.reference.linear; x, y [T, N]. Raises ValueError where they differ in dtype or shape."""
    if x.dtype is not y.dtype or x.shape != y.shape or x.dim() != 2:
        raise ValueError(f"x and y must be alike, got {x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)}")
    x, y = x.contiguous(), y.contiguous()
    out = target.empty(x, x.shape[1], dtype=x.dtype)
    target.calls.add(out.data_ptr(), x.data_ptr(), y.data_ptr(), target.num_rows(x), x.shape[1], DTYPE_CODES[x.dtype])
    return out


def select_rows(target: Target, x: Tensor, rows: Tensor) -> Tensor:
    """See motet.ops.reference.linear; rows must lie in x."""
    x, rows = x.contiguous(), rows.contiguous()
    out = target.empty(rows, *x.shape[1:], dtype=x.dtype)
    row_bytes = prod(x.shape[1:]) * x.dtype.itemsize
    target.calls.select_rows(out.data_ptr(), x.data_ptr(), rows.data_ptr(), target.num_rows(rows), row_bytes)
    return out
