"""Paged attention on the C++ kernels. Exact: a query's bits depend on it, on the keys it sees and on their positions.

Neither the chunk, mates in the batch, the blocks, nor threads change a bit. Head vectors are dense; tokens and heads of
q, k and v may be strided, as views of a fused projection are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from motet.ops.cpu.library import CACHE_DTYPE_CODES, DTYPE_CODES
from motet.ops.cpu.program import Count
from motet.ops.cpu.target import Target


@dataclass(frozen=True)
class PagedRows:
    """R rows of T tokens in all, as the kernel reads them.

    num_rows, table_stride: R and N, as kernels take them
    rows: int32 [3, R]: first position, number of tokens (from 1), index of the first token
    block_table: int32 [R, N], with entries below num_blocks wherever a row has a position
    window: the number of keys a query sees, itself included; 0: all
    """

    rows: Tensor
    block_table: Tensor
    num_rows: int
    table_stride: int
    num_tokens: int | Count
    num_blocks: int
    block_size: int
    window: int


def _check_heads(name: str, x: Tensor, num_tokens: int | Count, head_size: int, dtype: torch.dtype) -> None:
    if x.dim() != 3 or x.shape[0] != num_tokens or x.shape[2] != head_size or x.dtype is not dtype or not x.is_cpu:
        raise ValueError(
            f"{name} must be {dtype} [{num_tokens}, heads, {head_size}] on the CPU, got {x.dtype} {list(x.shape)}"
        )


def _check_caches(k_cache: Tensor, v_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> tuple[int, int]:
    """Addresses of the scales, 0 where there are none."""
    if k_cache.dim() != 3 or k_cache.shape != v_cache.shape or k_cache.dtype is not v_cache.dtype:
        raise ValueError(
            f"caches must be alike and [num_slots, heads, head_size], got {k_cache.dtype} {list(k_cache.shape)} "
            f"and {v_cache.dtype} {list(v_cache.shape)}"
        )
    if k_cache.dtype not in CACHE_DTYPE_CODES:
        raise ValueError(
            f"caches must be float32, bfloat16, float16, int8 or float8_e4m3fn, got {k_cache.dtype}",
        )
    if not (k_cache.is_cpu and v_cache.is_cpu and k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("caches must be contiguous CPU tensors")
    if k_cache.dtype in DTYPE_CODES:
        return 0, 0
    addresses = []
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is None:
            raise ValueError(f"a cache of {k_cache.dtype} needs {name}")
        if scale.dtype is not torch.float32 or scale.shape != k_cache.shape[:2] or not scale.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous float32 {list(k_cache.shape[:2])}, got {scale.dtype} {list(scale.shape)}"
            )
        addresses.append(scale.data_ptr())
    return addresses[0], addresses[1]


def _check_per_head(name: str, x: Tensor | None, num_heads: int) -> int:
    """The address of x, 0 for None."""
    if x is None:
        return 0
    if x.dtype is not torch.float32 or list(x.shape) != [num_heads] or not x.is_contiguous() or not x.is_cpu:
        raise ValueError(f"{name} must be contiguous float32 [{num_heads}], got {x.dtype} {list(x.shape)}")
    return x.data_ptr()


def _dense_heads(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 else x.contiguous()


def write_kv(
    target: Target,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """See motet.ops.reference.attention; slots must lie in the caches. Raises ValueError for what else does not fit."""
    k_scales, v_scales = _check_caches(k_cache, v_cache, k_scale, v_scale)
    num_tokens, (_, num_kv_heads, head_size) = slots.shape[0], k_cache.shape
    if k.dtype not in DTYPE_CODES:
        raise ValueError(f"k must be float32, bfloat16 or float16, got {k.dtype}")
    _check_heads("k", k, num_tokens, head_size, k.dtype)
    _check_heads("v", v, num_tokens, head_size, k.dtype)
    if k.shape[1] != num_kv_heads or v.shape[1] != num_kv_heads:
        raise ValueError(f"k and v must have the caches' {num_kv_heads} heads, got {k.shape[1]} and {v.shape[1]}")
    if slots.dtype is not torch.int64 or slots.dim() != 1 or not slots.is_contiguous() or not slots.is_cpu:
        raise ValueError(f"slots must be contiguous int64 [T], got {slots.dtype} {list(slots.shape)}")
    k, v = _dense_heads(k), _dense_heads(v)
    target.calls.write_kv(
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        k_scales,
        v_scales,
        k.data_ptr(),
        v.data_ptr(),
        slots.data_ptr(),
        target.num_rows(slots),
        num_kv_heads,
        head_size,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        DTYPE_CODES[k.dtype],
        CACHE_DTYPE_CODES[k_cache.dtype],
    )


def paged_attention(
    target: Target,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    rows: PagedRows,
    scale: float,
    soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """q [T, Hq, D] over the caches [num_slots, Hkv, D] -> [T, Hq * D]; see `attend` in motet.ops.reference.attention.

    Raises ValueError for other dtypes, shapes and layouts.
    """
    k_scales, v_scales = _check_caches(k_cache, v_cache, k_scale, v_scale)
    num_slots, num_kv_heads, head_size = k_cache.shape
    if q.dtype not in DTYPE_CODES:
        raise ValueError(f"q must be float32, bfloat16 or float16, got {q.dtype}")
    _check_heads("q", q, rows.num_tokens, head_size, q.dtype)
    num_heads = q.shape[1]
    if num_heads % num_kv_heads != 0:
        raise ValueError(f"the number of query heads must be a multiple of {num_kv_heads}, got {num_heads}")
    if rows.num_blocks * rows.block_size > num_slots:
        raise ValueError(f"the block table names {rows.num_blocks} blocks, the caches have {num_slots} slots")
    q = _dense_heads(q)
    out = target.empty(q, num_heads * head_size, dtype=q.dtype)
    target.calls.paged_attention(
        out.data_ptr(),
        q.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        k_scales,
        v_scales,
        rows.rows.data_ptr(),
        rows.block_table.data_ptr(),
        _check_per_head("alibi_slopes", alibi_slopes, num_heads),
        _check_per_head("sinks", sinks, num_heads),
        rows.num_rows,
        rows.table_stride,
        rows.block_size,
        rows.window,
        num_heads,
        num_kv_heads,
        head_size,
        q.stride(0),
        q.stride(1),
        scale,
        soft_cap or 0.0,
        DTYPE_CODES[q.dtype],
        CACHE_DTYPE_CODES[k_cache.dtype],
    )
    return out
