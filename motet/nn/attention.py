"""Self-attention over the paged cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from motet.core.state import Paged
from motet.nn.context import BuildContext
from motet.nn.linear import Linear
from motet.nn.norm import RMSNorm
from motet.tensors.forward import ForwardBatch
from motet.tensors.states import States

RopeTable = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class AttentionShape:
    """What the layers of a model share.

    scale: of the scores before the soft cap; None means head_size ** -0.5.
    """

    width: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float | None = None
    soft_cap: float | None = None

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def qkv_widths(self) -> list[int]:
        return [self.q_width, self.kv_width, self.kv_width]


class Attention:
    """Projection to q, k and v, optional norms of q and k, rotary embedding, paged attention, output projection.

    qkv: gives all query heads, then all key heads, then all value heads, side by side. window: keys that a query sees,
    itself included (None: all). q_norm, k_norm: over one head, or over all of them if as wide.
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        shape: AttentionShape,
        qkv: Linear,
        out: Linear,
        rope: RopeTable | None = None,
        window: int | None = None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        self.ops, self.backend, self.name, self.shape = ctx.ops, ctx.attention, name, shape
        self.qkv, self.out = qkv, out
        self.rope, self.alibi_slopes, self.sinks = rope, alibi_slopes, sinks
        self.q_norm, self.k_norm = (norm.weight if norm else None for norm in (q_norm, k_norm))
        self.norm_eps = q_norm.eps if q_norm else 0.0
        self.scale = shape.scale if shape.scale is not None else shape.head_size**-0.5
        ctx.states[name] = Paged(shape.num_kv_heads, shape.head_size, ctx.kv_dtype, window)

    def __call__(self, x: Tensor, batch: ForwardBatch, states: States, residual: Tensor | None = None) -> Tensor:
        """x [T, width] -> [T, width], plus `residual`."""
        shape, state = self.shape, states.paged(self.name)
        q, k, v = self.ops.qkv_heads(
            self.qkv(x, adapters=batch.adapters),
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_size,
            batch.positions,
            self.rope,
            self.q_norm,
            self.k_norm,
            self.norm_eps,
        )
        mixed = self.backend.attend(
            q, k, v, state, batch.attention[state.group], self.scale, shape.soft_cap, self.alibi_slopes, self.sinks
        )
        return self.out(mixed, residual, batch.adapters)


def split_projections(
    ctx: BuildContext, name: str, shape: AttentionShape, qkv_bias: bool = False, out_bias: bool = False
) -> tuple[Linear, Linear]:
    """The projections of an attention block under their usual names: `name`.q_proj, .k_proj, .v_proj and .o_proj."""
    names = [f"{name}.{part}_proj" for part in ("q", "k", "v")]
    qkv = Linear(ctx, names, shape.width, shape.qkv_widths, qkv_bias)
    return qkv, Linear(ctx, f"{name}.o_proj", shape.q_width, shape.width, out_bias)


def alibi_slopes(num_heads: int) -> Tensor:
    """Slopes of Press et al. 2022: powers of 2^(-8/n) for the largest power of two n <= num_heads, then every second
    slope of the next power of two. float32 [num_heads]."""
    closest = 1 << (num_heads.bit_length() - 1)
    base = [2.0 ** (-8.0 * (i + 1) / closest) for i in range(closest)]
    more = [2.0 ** (-4.0 * (2 * i + 1) / closest) for i in range(num_heads - closest)]
    return torch.tensor(base + more, dtype=torch.float32)
