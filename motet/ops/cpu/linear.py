"""Linear layers on the C++ kernels. Exact: an output's bits depend on its own row and weights alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from motet.ops.cpu.library import DTYPE_CODES, LINEAR_BLOCK, kernels
from motet.ops.cpu.target import Target


@dataclass(frozen=True)
class PackedLinear:
    """A matrix [num_outputs, num_inputs] in the order in which the kernel reads it (csrc/linear.cpp)."""

    data: Tensor
    num_outputs: int
    num_inputs: int


def pack_linear(weight: Tensor) -> PackedLinear:
    """weight [N, K] float32, bfloat16 or float16. Raises ValueError for other dtypes."""
    if weight.dtype not in DTYPE_CODES or weight.dim() != 2:
        raise ValueError(f"weight must be a matrix of float32, bfloat16 or float16, got {weight.dtype} {weight.shape}")
    num_outputs, num_inputs = weight.shape
    weight = weight.contiguous()
    num_rows = -(-num_outputs // LINEAR_BLOCK) * LINEAR_BLOCK
    num_columns = num_inputs + num_inputs % 2 if weight.dtype is torch.bfloat16 else num_inputs
    data = torch.empty(num_rows * num_columns, dtype=weight.dtype)
    kernels().pack_linear(data.data_ptr(), weight.data_ptr(), num_outputs, num_inputs, DTYPE_CODES[weight.dtype])
    return PackedLinear(data, num_outputs, num_inputs)


def _multiply(
    target: Target, x: Tensor, weight: PackedLinear, bias: Tensor | None, residual: Tensor | None, dtype: torch.dtype
) -> Tensor:
    if x.dtype is not weight.data.dtype or x.dim() != 2 or x.shape[1] != weight.num_inputs:
        raise ValueError(
            f"x must be {weight.data.dtype} [T, {weight.num_inputs}] as the weight, got {x.dtype} {list(x.shape)}"
        )
    x = x.contiguous()
    out = target.empty(x, weight.num_outputs, dtype=dtype)
    for name, other in (("bias", bias), ("residual", residual)):
        if other is not None and (other.dtype is not x.dtype or not other.is_contiguous()):
            raise ValueError(f"{name} must be contiguous {x.dtype}, got {other.dtype}")
    if residual is not None and residual.shape != out.shape:
        raise ValueError(f"residual must be {list(out.shape)}, got {list(residual.shape)}")
    target.calls.linear(
        out.data_ptr(),
        x.data_ptr(),
        weight.data.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        target.num_rows(x),
        weight.num_outputs,
        weight.num_inputs,
        DTYPE_CODES[x.dtype],
        dtype is torch.float32,
    )
    return out


def linear(
    target: Target, x: Tensor, weight: PackedLinear, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """See motet.ops.reference.linear; the sum is rounded once, at the end."""
    return _multiply(target, x, weight, bias, residual, x.dtype)


def linear_f32(target: Target, x: Tensor, weight: PackedLinear, bias: Tensor | None = None) -> Tensor:
    """The same with a float32 result, not rounded to x's dtype in between."""
    return _multiply(target, x, weight, bias, None, torch.float32)


def embedding(target: Target, ids: Tensor, table: PackedLinear, scale: float | None = None) -> Tensor:
    """See motet.ops.reference.linear."""
    ids, dtype = ids.contiguous(), table.data.dtype
    out = target.empty(ids, table.num_inputs, dtype=dtype)
    target.calls.unpack_rows(
        out.data_ptr(),
        table.data.data_ptr(),
        ids.data_ptr(),
        target.num_rows(ids),
        table.num_inputs,
        1.0 if scale is None else float(torch.tensor(scale, dtype=dtype)),
        DTYPE_CODES[dtype],
    )
    return out
