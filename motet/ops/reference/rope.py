"""From the fused QKV projection to rotated heads: the definition."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from motet.ops.reference.norm import rms_norm

Norm = Callable[[Tensor, Tensor, float], Tensor]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of x [T, heads, D] in float32; pairs are (i, i + R/2) for i < R/2.

    cos, sin: float32 [T, R/2]; dimensions from R on pass unchanged.
    """
    half = cos.shape[-1]
    first, second, rest = x.float().split([half, half, x.shape[-1] - 2 * half], dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1).to(x.dtype)


def _norm_heads(x: Tensor, weight: Tensor | None, eps: float, norm: Norm) -> Tensor:
    if weight is None:
        return x
    # A weight as wide as one head norms each head; a wider one norms all heads together.
    return norm(x.reshape(-1, weight.numel()).contiguous(), weight, eps).view(x.shape)


def qkv_heads(
    qkv: Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    positions: Tensor,
    rope: tuple[Tensor, Tensor] | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    norm_eps: float = 0.0,
    norm: Norm = rms_norm,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv [T, (Hq + 2 Hkv) * D], norm q and k, rotate them by position.

    norm: the RMSNorm to use.
    positions: int64 [T]; rope: (cos, sin), each float32 [max_len, R/2]; q_norm, k_norm: float32 [D] or [H * D].
    Returns q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D] in qkv's dtype.
    """
    q, k, v = qkv.split([num_heads * head_size, num_kv_heads * head_size, num_kv_heads * head_size], dim=-1)
    q = _norm_heads(q, q_norm, norm_eps, norm).reshape(-1, num_heads, head_size)
    k = _norm_heads(k, k_norm, norm_eps, norm).reshape(-1, num_kv_heads, head_size)
    if rope is not None:
        cos, sin = rope[0][positions], rope[1][positions]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    return q, k, v.reshape(-1, num_kv_heads, head_size)
