"""Mixture of experts: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.reference.activation import activation_mul


def route(router_logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """router_logits [T, E] -> weights float32 [T, top_k] (softmax over all experts) and expert ids [T, top_k]."""
    weights, ids = torch.softmax(router_logits.float(), dim=-1).topk(top_k, dim=-1)
    return (weights / weights.sum(dim=-1, keepdim=True) if renormalize else weights), ids


def moe(
    x: Tensor, router_logits: Tensor, gate_up: list[Tensor], down: list[Tensor], top_k: int, renormalize: bool, act: str
) -> Tensor:
    """Each token of x [T, H] through its top_k experts; outputs are added in rising expert order, in float32.

    gate_up[e]: [2 * I, H]; down[e]: [H, I]. Returns [T, H] in x's dtype.
    """
    weights, ids = route(router_logits, top_k, renormalize)
    out = torch.zeros(x.shape, dtype=torch.float32)
    for expert in ids.unique().tolist():
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        hidden = activation_mul(x[tokens] @ gate_up[expert].T, act) @ down[expert].T
        out[tokens] += hidden.float() * weights[tokens, slots].unsqueeze(1)
    return out.to(x.dtype)
