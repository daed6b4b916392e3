"""Mixture of experts on the C++ kernels. Exact: a token's bits do not depend on which experts its mates choose.

Each token has `top_k` rows, and those of all tokens lie sorted by expert; so every buffer has a fixed width per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from motet.ops.cpu.activation import KIND_CODES
from motet.ops.cpu.library import DTYPE_CODES
from motet.ops.cpu.linear import quantize_rows
from motet.ops.cpu.packing import PackedExperts
from motet.ops.cpu.target import Target


@dataclass(frozen=True)
class Routes:
    """See RouteArgs in csrc/kernel_args.h; each [T, top_k]."""

    weights: Tensor
    places: Tensor
    experts: Tensor
    tokens: Tensor
    top_k: int


def _check(x: Tensor, router_logits: Tensor, gate_up: PackedExperts, down: PackedExperts, top_k: int) -> None:
    num_experts = len(gate_up.experts)
    if x.dtype not in DTYPE_CODES or x.dim() != 2 or x.shape[1] != gate_up.num_inputs:
        raise ValueError(
            f"x must be float32, bfloat16 or float16 [T, {gate_up.num_inputs}], got {x.dtype} {list(x.shape)}"
        )
    if router_logits.dtype not in DTYPE_CODES or router_logits.shape != (x.shape[0], num_experts):
        raise ValueError(f"router_logits must be floats [T, {num_experts}], got {list(router_logits.shape)}")
    if len(down.experts) != num_experts or gate_up.num_outputs != 2 * down.num_inputs:
        raise ValueError(
            f"{num_experts} experts of {gate_up.num_outputs} outputs of gate and up need as many with half as many "
            f"inputs of down, got {len(down.experts)} with {down.num_inputs}"
        )
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"top_k must be between 1 and the {num_experts} experts, got {top_k}")


def route(target: Target, router_logits: Tensor, top_k: int, renormalize: bool) -> Routes:
    """router_logits [T, E] -> each token's experts and weights; see motet.ops.reference.moe.route."""
    router_logits = router_logits.contiguous()
    weights, places, experts, tokens = (
        target.empty(router_logits, top_k, dtype=dtype)
        for dtype in (torch.float32, torch.int64, torch.int32, torch.int64)
    )
    target.calls.route(
        weights.data_ptr(),
        places.data_ptr(),
        experts.data_ptr(),
        tokens.data_ptr(),
        router_logits.data_ptr(),
        target.num_rows(router_logits),
        router_logits.shape[1],
        top_k,
        renormalize,
        DTYPE_CODES[router_logits.dtype],
    )
    return Routes(weights, places, experts, tokens, top_k)


def _gather(target: Target, x: Tensor, routes: Routes) -> Tensor:
    """x [T, N] -> the rows of the tokens in the order of their experts, [T, top_k * N]."""
    width = x.shape[1]
    out = target.empty(x, routes.top_k * width, dtype=x.dtype)
    num_rows = target.num_rows(x, routes.top_k)
    row_bytes = width * x.dtype.itemsize
    target.calls.select_rows(out.data_ptr(), x.data_ptr(), routes.tokens.data_ptr(), num_rows, row_bytes)
    return out


def _multiply(target: Target, x: Tensor, weight: PackedExperts, routes: Routes, is_sorted: bool) -> Tensor:
    """[T, top_k * num_outputs], sorted by expert; so is x, [T, top_k * K], or else it has one row per token, [T, K]."""
    out = target.empty(x, routes.top_k * weight.num_outputs, dtype=x.dtype)
    rows: dict[int, Tensor] = {}  # by group
    first_column = 0
    for part, addresses in zip(weight.experts[0].parts, weight.addresses, strict=True):
        if part.group not in rows:  # groups divide num_inputs: a token's rows are quantised as one
            values = x if part.kind is None else quantize_rows(target, x, part.group)
            rows[part.group] = values if is_sorted else _gather(target, values, routes)
        output = (out.data_ptr(), weight.num_outputs, first_column, DTYPE_CODES[x.dtype])
        inputs = (rows[part.group].data_ptr(), addresses.data_ptr(), routes.experts.data_ptr())
        size = (target.num_rows(x, routes.top_k), part.num_outputs, weight.num_inputs)
        if part.kind is None:
            target.calls.expert_linear(*output, *inputs, *size, DTYPE_CODES[part.data.dtype])
        else:
            target.calls.quant_expert_linear(*output, *inputs, *size, part.group, part.kind)
        first_column += part.num_outputs
    return out


def moe(
    target: Target,
    x: Tensor,
    router_logits: Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    top_k: int,
    renormalize: bool,
    act: str,
) -> Tensor:
    """See motet.ops.reference.moe. Raises ValueError for what does not fit."""
    _check(x, router_logits, gate_up, down, top_k)
    x, code, inner = x.contiguous(), DTYPE_CODES[x.dtype], down.num_inputs
    routes = route(target, router_logits, top_k, renormalize)
    both = _multiply(target, x, gate_up, routes, is_sorted=False)
    hidden = target.empty(x, top_k * inner, dtype=x.dtype)
    target.calls.activation(
        hidden.data_ptr(), both.data_ptr(), target.num_rows(x, top_k), inner, True, KIND_CODES[act], 0.0, code
    )
    mixed = _multiply(target, hidden, down, routes, is_sorted=True)
    out = target.empty(x, down.num_outputs, dtype=x.dtype)
    target.calls.combine_experts(
        out.data_ptr(),
        mixed.data_ptr(),
        routes.weights.data_ptr(),
        routes.places.data_ptr(),
        target.num_rows(x),
        down.num_outputs,
        top_k,
        code,
    )
    return out
