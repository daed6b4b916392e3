"""Linear layers on the C++ kernels. Exact: an output's bits depend on its own row and weights alone."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.cpu.library import DTYPE_CODES, GROUP_META_BYTES
from motet.ops.cpu.packing import PackedLinear
from motet.ops.cpu.target import Target

CHUNK = 32  # the integers of a group are padded to a multiple of it


def _record_bytes(group: int) -> int:
    return -(-group // CHUNK) * CHUNK + GROUP_META_BYTES


def quantize_rows(target: Target, x: Tensor, group: int) -> Tensor:
    """x [T, K] -> uint8 [T, records of a row]: what csrc/kernel_args.h says at GroupMeta. Defined by
    motet.ops.reference.quantized.quantize_rows."""
    num_cols = x.shape[1]
    out = target.empty(x, -(-num_cols // group) * _record_bytes(group), dtype=torch.uint8)
    target.calls.quantize_rows(out.data_ptr(), x.data_ptr(), target.num_rows(x), num_cols, group, DTYPE_CODES[x.dtype])
    return out


def split_records(rows: Tensor, num_cols: int, group: int) -> tuple[Tensor, Tensor]:
    """Rows as `quantize_rows` gives them -> integers int8 [T, K] and scales float32 [T, groups]: for tests."""
    records = rows.view(len(rows), -1, _record_bytes(group))
    num_bytes = records.shape[2] - GROUP_META_BYTES
    scales = records[:, :, num_bytes : num_bytes + 4].contiguous().view(torch.float32)
    return records[:, :, :group].reshape(len(rows), -1)[:, :num_cols].view(torch.int8), scales.squeeze(2)


def _check(x: Tensor, weight: PackedLinear, bias: Tensor | None, residual: Tensor | None) -> None:
    if x.dtype not in DTYPE_CODES or x.dim() != 2 or x.shape[1] != weight.num_inputs:
        raise ValueError(
            f"x must be float32, bfloat16 or float16 [T, {weight.num_inputs}], got {x.dtype} {list(x.shape)}"
        )
    for name, other in (("bias", bias), ("residual", residual)):
        if other is not None and (other.dtype is not x.dtype or not other.is_contiguous()):
            raise ValueError(f"{name} must be contiguous {x.dtype}, got {other.dtype}")
    if bias is not None and bias.shape != (weight.num_outputs,):
        raise ValueError(f"bias must be [{weight.num_outputs}], got {list(bias.shape)}")
    if residual is not None and residual.shape != (x.shape[0], weight.num_outputs):
        raise ValueError(f"residual must be [T, {weight.num_outputs}] as the result, got {list(residual.shape)}")


def _multiply(
    target: Target, x: Tensor, weight: PackedLinear, bias: Tensor | None, residual: Tensor | None, dtype: torch.dtype
) -> Tensor:
    _check(x, weight, bias, residual)
    x = x.contiguous()
    out = target.empty(x, weight.num_outputs, dtype=dtype)
    quantized: dict[int, Tensor] = {}  # x, by group
    first_column = 0
    for part in weight.parts:
        output = (
            out.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if residual is None else residual.data_ptr(),
            weight.num_outputs,
            first_column,
            DTYPE_CODES[x.dtype],
            dtype is torch.float32,
        )
        size = (target.num_rows(x), part.num_outputs, weight.num_inputs)
        if part.kind is None:
            target.calls.linear(*output, x.data_ptr(), part.data.data_ptr(), *size, DTYPE_CODES[part.data.dtype])
        else:
            if part.group not in quantized:
                quantized[part.group] = quantize_rows(target, x, part.group)
            rows = quantized[part.group].data_ptr()
            target.calls.quant_linear(*output, rows, part.data.data_ptr(), *size, part.group, part.kind)
        first_column += part.num_outputs
    return out


def linear(
    target: Target, x: Tensor, weight: PackedLinear, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """See motet.ops.reference.linear; the sum is rounded once, at the end."""
    return _multiply(target, x, weight, bias, residual, x.dtype)


def linear_f32(target: Target, x: Tensor, weight: PackedLinear, bias: Tensor | None = None) -> Tensor:
    """The same with a float32 result, not rounded to x's dtype in between."""
    return _multiply(target, x, weight, bias, None, torch.float32)


def embedding(
    target: Target, ids: Tensor, table: PackedLinear, scale: float | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """See motet.ops.reference.linear. Raises ValueError for a table of parts of several kinds."""
    if len(table.parts) != 1:
        raise ValueError(f"an embedding table must be of one kind, got {len(table.parts)} parts")
    (part,) = table.parts
    ids, dtype = ids.contiguous(), dtype or (torch.float32 if part.kind is not None else part.data.dtype)
    factor = 1.0 if scale is None else float(torch.tensor(scale, dtype=dtype))
    out = target.empty(ids, table.num_inputs, dtype=dtype)
    size = (target.num_rows(ids), table.num_inputs)
    if part.kind is None:
        codes = (DTYPE_CODES[dtype], DTYPE_CODES[part.data.dtype])
        target.calls.unpack_rows(out.data_ptr(), part.data.data_ptr(), ids.data_ptr(), *size, factor, *codes)
    else:
        codes = (part.kind, DTYPE_CODES[dtype])
        target.calls.unpack_quantized(
            out.data_ptr(), part.data.data_ptr(), ids.data_ptr(), *size, part.group, factor, *codes
        )
    return out
