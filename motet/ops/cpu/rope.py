"""From the QKV projection to normed and rotated heads, in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.cpu.library import DTYPE_CODES
from motet.ops.cpu.target import Target


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def qkv_heads(
    target: Target,
    qkv: Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    positions: Tensor,
    rope: tuple[Tensor, Tensor] | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    norm_eps: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """See motet.ops.reference.rope. Raises ValueError for other shapes and layouts."""
    num_tokens, width = qkv.shape
    if width != (num_heads + 2 * num_kv_heads) * head_size or not qkv.is_contiguous():
        raise ValueError(
            f"qkv must be contiguous [T, {(num_heads + 2 * num_kv_heads) * head_size}], got {list(qkv.shape)}"
        )
    if positions.dtype is not torch.int64 or positions.shape != (num_tokens,) or not positions.is_contiguous():
        raise ValueError(f"positions must be int64 [{num_tokens}], got {positions.dtype} {list(positions.shape)}")
    q = target.empty(qkv, num_heads, head_size, dtype=qkv.dtype)
    k, v = (target.empty(qkv, num_kv_heads, head_size, dtype=qkv.dtype) for _ in range(2))
    cos, sin = rope or (None, None)
    target.calls.qkv_heads(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        qkv.data_ptr(),
        positions.data_ptr(),
        _address(cos),
        _address(sin),
        _address(q_norm),
        _address(k_norm),
        target.num_rows(qkv),
        num_heads,
        num_kv_heads,
        head_size,
        0 if cos is None else cos.shape[1],
        0 if q_norm is None else q_norm.numel(),
        0 if k_norm is None else k_norm.numel(),
        norm_eps,
        DTYPE_CODES[qkv.dtype],
    )
    return q, k, v
