"""From the fused QKV projection to rotated heads: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.reference.norm import rms_norm
from motet.ops.registry import OpSpec, Sample, define_op


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of x [T, heads, D] in float32; pairs are (i, i + R/2) for i < R/2.

    cos, sin: float32 [T, R/2]; dimensions from R on pass unchanged.
    """
    half = cos.shape[-1]
    first, second, rest = x.float().split([half, half, x.shape[-1] - 2 * half], dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1).to(x.dtype)


def _norm_heads(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    # A weight as wide as one head norms each head; a wider one norms all heads together.
    return rms_norm(x.reshape(-1, weight.numel()), weight, eps).view(x.shape)


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv [T, (Hq + 2 Hkv) * D], norm q and k, rotate them by position.

    positions: int64 [T]; rope: (cos, sin), each float32 [max_len, R/2]; q_norm, k_norm: float32 [D] or [H * D].
    Returns q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D] in qkv's dtype.
    """
    q, k, v = qkv.split([num_heads * head_size, num_kv_heads * head_size, num_kv_heads * head_size], dim=-1)
    q = _norm_heads(q, q_norm, norm_eps).reshape(-1, num_heads, head_size)
    k = _norm_heads(k, k_norm, norm_eps).reshape(-1, num_kv_heads, head_size)
    if rope is not None:
        cos, sin = rope[0][positions], rope[1][positions]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    return q, k, v.reshape(-1, num_kv_heads, head_size)


def _samples() -> list[Sample]:
    """With and without rotation (whole and part of the head) and norms (of a head, of all heads)."""
    samples = []
    generator = torch.Generator().manual_seed(0)
    positions = torch.tensor([0, 3, 17, 4, 31])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for head_size, rotated, norms in ((24, 24, "none"), (40, 16, "head"), (64, 64, "all"), (8, 0, "none")):
            heads = (6, 2, head_size)
            angles = torch.randn(32, rotated // 2, generator=generator)
            rope = (angles.cos(), angles.sin()) if rotated else None
            sizes = {"none": None, "head": (head_size, head_size), "all": (6 * head_size, 2 * head_size)}[norms]
            weights = [1 + 0.3 * torch.randn(size, generator=generator) for size in sizes] if sizes else [None, None]
            qkv = torch.randn(5, 10 * head_size, generator=generator).to(dtype)
            label = f"{dtype}-{head_size}-{rotated}-{norms}".removeprefix("torch.")
            samples.append(Sample(label, (qkv, *heads, positions, rope, *weights, 1e-5)))
    return samples


# Where the norm's last bit differs, bfloat16 and float16 round to a neighbour, and the rotation adds up two of them.
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2**-6, 2**-6), torch.float16: (2**-9, 2**-9)}

QKV_HEADS = define_op(OpSpec("qkv_heads", qkv_heads, _samples, TOLERANCE))
