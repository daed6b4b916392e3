"""Low-rank adapters on the C++ kernels. Exact: a row's bits do not depend on which adapters its mates have."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.cpu.library import DTYPE_CODES
from motet.ops.cpu.target import Target
from motet.ops.lora import LoraWeights


def _check(y: Tensor, x: Tensor, weights: LoraWeights, tokens: Tensor, slots: Tensor) -> None:
    num_inputs, num_outputs, dtype = weights.a.shape[3], weights.num_outputs, weights.a.dtype
    for name, tensor, width in (("x", x, num_inputs), ("y", y, num_outputs)):
        if tensor.dtype is not dtype or tensor.dim() != 2 or tensor.shape[1] != width or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {dtype} [T, {width}] as the adapters, got {tensor.dtype} "
                f"{list(tensor.shape)}"
            )
    if tokens.dtype is not torch.int64 or slots.dtype is not torch.int32 or tokens.shape != slots.shape:
        raise ValueError(f"tokens must be int64 and slots int32, one each, got {tokens.dtype} and {slots.dtype}")


def lora(target: Target, y: Tensor, x: Tensor, weights: LoraWeights, tokens: Tensor, slots: Tensor) -> Tensor:
    """See motet.ops.reference.lora. Writes to y and returns it. Raises ValueError for what does not fit."""
    _check(y, x, weights, tokens, slots)
    num_parts, max_rank, code = len(weights.ends), weights.max_rank, DTYPE_CODES[y.dtype]
    rows = (weights.ranks.data_ptr(), tokens.data_ptr(), slots.data_ptr(), target.num_rows(tokens), num_parts, max_rank)
    low = target.empty(tokens, num_parts * max_rank, dtype=torch.float32)
    target.calls.lora_shrink(
        low.data_ptr(), x.data_ptr(), weights.a.data_ptr(), weights.scales.data_ptr(), *rows, x.shape[1], code
    )
    target.calls.lora_expand(
        y.data_ptr(),
        low.data_ptr(),
        weights.b.data_ptr(),
        weights.ends.data_ptr(),
        *rows,
        y.shape[1],
        code,
    )
    return y
