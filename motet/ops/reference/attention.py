"""Attention over paged K and V: the definition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Store k, v [T, Hkv, D] at slots int64 [T] of the caches [num_slots, Hkv, D], rounded to the caches' dtype.

    All rows of a step are written before any row reads, so a row may attend to keys that a mate has just written.
    """
    k_cache.index_copy_(0, slots, k.to(k_cache.dtype))
    v_cache.index_copy_(0, slots, v.to(v_cache.dtype))


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    segments: list[Segment],
    scale: float,
    soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
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
        keys = k_cache[segment.key_slots].permute(0, 2, 3, 1).float()
        values = v_cache[segment.key_slots].transpose(1, 2).float()
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
