"""Mixture of experts: the definition, with its samples and tolerance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from motet.ops.reference.activation import activation_mul
from motet.ops.reference.linear import TOLERANCE, Weight, linear
from motet.ops.registry import OpSpec, Sample, define_op


def route(router_logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """router_logits [T, E] -> weights float32 [T, top_k] (softmax over all experts) and expert ids [T, top_k].

    Of equal scores the lower expert comes first.
    """
    ids = router_logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = torch.softmax(router_logits.float(), dim=-1).gather(1, ids)
    return (weights / weights.sum(dim=-1, keepdim=True) if renormalize else weights), ids


def moe(
    x: Tensor,
    router_logits: Tensor,
    gate_up: Sequence[Weight],
    down: Sequence[Weight],
    top_k: int,
    renormalize: bool,
    act: str,
) -> Tensor:
    """Each token of x [T, H] through its top_k experts; outputs are added in rising expert order, in float32.

    An expert is a gated block (Shazeer et al. 2017): gate_up[e] [2 * I, H], down[e] [H, I]; its outputs are rounded to
    x's dtype as those of linear layers are. Returns [T, H] in x's dtype.
    """
    weights, ids = route(router_logits, top_k, renormalize)
    out = torch.zeros(x.shape, dtype=torch.float32)
    for expert in ids.unique().tolist():
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        hidden = linear(activation_mul(linear(x[tokens], gate_up[expert]), act), down[expert])
        out[tokens] += hidden.float() * weights[tokens, slots].unsqueeze(1)
    return out.to(x.dtype)


def random_experts(
    num_tokens: int, width: int, inner: int, num_experts: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """x, router_logits (some of them equal), gate_up and down."""
    generator = torch.Generator().manual_seed(width + num_experts)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    gate_up = [(random(2 * inner, width) / width**0.5).to(dtype) for _ in range(num_experts)]
    down = [(random(width, inner) / inner**0.5).to(dtype) for _ in range(num_experts)]
    logits = (random(num_tokens, num_experts) * 2).round() / 2
    return random(num_tokens, width).to(dtype), logits.to(dtype), gate_up, down


def _samples() -> list[Sample]:
    sizes = ((1, 40, 33, 3, 1, True), (9, 64, 40, 8, 2, True), (13, 65, 72, 21, 5, False), (2, 32, 16, 4, 4, True))
    return [
        Sample(
            f"{num_experts}-{top_k}-{dtype}".replace("torch.", ""),
            (*random_experts(num_tokens, width, inner, num_experts, dtype), top_k, renormalize, "silu"),
        )
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for num_tokens, width, inner, num_experts, top_k, renormalize in sizes
    ]


MOE = define_op(OpSpec("moe", moe, _samples, TOLERANCE))
