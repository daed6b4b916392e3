"""Mixture of experts: the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from motet.ops.reference.activation import activation_mul
from motet.ops.reference.linear import Weight, linear


def route(router_logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """router_logits [T, E] -> weights float32 [T, top_k] (softmax over all experts) and expert ids [T, top_k]."""
    weights, ids = torch.softmax(router_logits.float(), dim=-1).topk(top_k, dim=-1)
    return (weights / weights.sum(dim=-1, keepdim=True) if renormalize else weights), ids


def feed_forward(x: Tensor, gate_up: Weight, down: Weight, act: str) -> Tensor:
    """One expert: x [N, H], gate_up [2 * I, H], down [H, I] -> [N, H]."""
    return linear(activation_mul(linear(x, gate_up), act), down)


def moe(
    x: Tensor,
    router_logits: Tensor,
    gate_up: list[Any],
    down: list[Any],
    top_k: int,
    renormalize: bool,
    act: str,
    feed_forward: Callable[[Tensor, Any, Any, str], Tensor] = feed_forward,
) -> Tensor:
    """Each token of x [T, H] through its top_k experts; outputs are added in rising expert order, in float32.

    gate_up[e], down[e]: the weights of expert e, as `feed_forward` takes them. Returns [T, H] in x's dtype.
    """
    weights, ids = route(router_logits, top_k, renormalize)
    out = torch.zeros(x.shape, dtype=torch.float32)
    for expert in ids.unique().tolist():
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        hidden = feed_forward(x[tokens], gate_up[expert], down[expert], act)
        out[tokens] += hidden.float() * weights[tokens, slots].unsqueeze(1)
    return out.to(x.dtype)
