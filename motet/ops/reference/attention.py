"""Attention over paged K and V: the definition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GREATEST = {torch.int8: torch.tensor(127.0), torch.float8_e4m3fn: torch.tensor(448.0)}  # that a byte holds
NEGLIGIBLE = 2.0**-100  # vectors below it count as zero


@dataclass(frozen=True)
class Segment:
    """B rows with Q queries each that look at up to N keys each.

    queries: int64 [B, Q], indices into the step's tokens
    key_slots: int64 [B, N], slots of the keys in the cache (0 where there is none)
    query_positions: int64 [B, Q]; key_positions: int64 [B, N]
    visible: bool [B, 1, Q, N]
    """

    queries: Tensor
    key_slots: Tensor
    query_positions: Tensor
    key_positions: Tensor
    visible: Tensor


def quantize_heads(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [T, H, D] -> bytes [T, H, D] of int8 or float8_e4m3fn, and their scales, float32 [T, H].

    With G the greatest value of the dtype (127, 448), scale = max|x| / G of each token and head, and a byte is
    x * (G / max|x|), in float32, rounded to nearest even. A vector with a NaN or an infinity has the scale NaN, and one
    of (almost) zeros the scale 0; the bytes of both are 0.
    """
    greatest, limit = x.float().abs().amax(dim=2), GREATEST[dtype]
    is_finite = greatest.isfinite()
    counts = is_finite & (greatest >= NEGLIGIBLE)
    scaled = x.float() * torch.where(counts, limit / greatest, 0.0).unsqueeze(2)
    scaled = torch.where(counts.unsqueeze(2), scaled.round() if dtype is torch.int8 else scaled, 0.0)
    return scaled.to(dtype), torch.where(counts, greatest / limit, torch.where(is_finite, 0.0, torch.nan))


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Store k, v [T, Hkv, D] at slots int64 [T] of the caches [num_slots, Hkv, D], rounded to the caches' dtype.

    k_scale, v_scale: float32 [num_slots, Hkv], written too, for caches of int8 and float8_e4m3fn
    All rows of a step are written before any row reads, so a row may attend to keys that a mate has just written.
    """
    for x, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        if scale is None:
            cache.index_copy_(0, slots, x.to(cache.dtype))
        else:
            stored, scales = quantize_heads(x, cache.dtype)
            cache.view(torch.uint8).index_copy_(0, slots, stored.view(torch.uint8))
            scale.index_copy_(0, slots, scales)


def read_kv(cache: Tensor, scale: Tensor | None, slots: Tensor) -> Tensor:
    """What stands in slots [..] of a cache [num_slots, Hkv, D], as float32 [.., Hkv, D]."""
    if scale is None:
        return cache[slots].float()
    return cache.view(torch.uint8)[slots].view(cache.dtype).float() * scale[slots].unsqueeze(-1)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    segments: list[Segment],
    scale: float,
    soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """softmax(scale * q k' [soft-capped] + alibi) v over the visible keys, in float32; q [T, Hq, D] -> [T, Hq * D].

    Query heads h with the same h // (Hq / Hkv) share a K/V head (Ainslie et al. 2023, GQA). alibi_slopes: float32 [Hq]
    (Press et al. 2022). sinks: float32 [Hq], a logit per head that takes part in the softmax and has no value.
    """
    num_tokens, num_heads, head_size = q.shape
    num_kv_heads = k_cache.shape[1]
    group = num_heads // num_kv_heads
    out = torch.zeros(num_tokens, num_heads, head_size, dtype=q.dtype)
    for segment in segments:
        rows, num_queries = segment.queries.shape
        # [B, Hkv, group * Q, D] against [B, Hkv, N, D]: one product serves a whole group of query heads.
        queries = q[segment.queries].view(rows, num_queries, num_kv_heads, group, head_size).permute(0, 2, 3, 1, 4)
        keys = read_kv(k_cache, k_scale, segment.key_slots).permute(0, 2, 3, 1)
        values = read_kv(v_cache, v_scale, segment.key_slots).transpose(1, 2)
        scores = queries.reshape(rows, num_kv_heads, group * num_queries, head_size).float() @ keys * scale
        scores = scores.view(rows, num_heads, num_queries, -1)
        if soft_cap is not None:
            scores = torch.tanh(scores / soft_cap) * soft_cap
        if alibi_slopes is not None:
            distance = segment.key_positions[:, None, :] - segment.query_positions[:, :, None]
            scores = scores + alibi_slopes.view(1, -1, 1, 1) * distance.unsqueeze(1)
        scores = scores.masked_fill(~segment.visible, -torch.inf)
        if sinks is not None:
            column = sinks.view(1, -1, 1, 1).expand(rows, -1, num_queries, 1)
            scores = torch.cat([scores, column], dim=-1)
        probabilities = torch.softmax(scores, dim=-1)
        if sinks is not None:
            probabilities = probabilities[..., :-1]
        mixed = probabilities.reshape(rows, num_kv_heads, group * num_queries, -1) @ values
        mixed = mixed.view(rows, num_heads, num_queries, head_size).transpose(1, 2).to(q.dtype)
        out[segment.queries.reshape(-1)] = mixed.reshape(-1, num_heads, head_size)
    return out.view(num_tokens, num_heads * head_size)
