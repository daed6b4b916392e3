"""Mixture-of-experts block."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.nn.context import BuildContext
from motet.nn.linear import Linear
from motet.ops.reference.activation import activation_name


class MoE:
    """A router and `num_experts` gated feed-forward blocks, `top_k` of which see a token (Shazeer et al. 2017).

    experts: the experts' common name. Either each has tensors of its own, `experts`.0.gate_proj.weight and so on, under
    the three names `parts` of gate, up and down; or one tensor holds all: `experts`.gate_up_proj [E, 2 * inner, width]
    and `experts`.down_proj [E, width, inner]. renormalize: the weights of the chosen experts add up to 1.
    """

    def __init__(
        self,
        ctx: BuildContext,
        router: str,
        experts: str,
        parts: tuple[str, str, str],
        width: int,
        inner: int,
        num_experts: int,
        top_k: int,
        renormalize: bool,
        act: str = "silu",
    ) -> None:
        self.ops = ctx.ops
        self.top_k = top_k
        self.renormalize = renormalize
        self.act = activation_name(act)
        self.router = Linear(ctx, router, width, num_experts)
        if ctx.weights.has(f"{experts}.gate_up_proj"):
            gate_up = list(ctx.weights.take(f"{experts}.gate_up_proj", (num_experts, 2 * inner, width), ctx.dtype))
            down = list(ctx.weights.take(f"{experts}.down_proj", (num_experts, width, inner), ctx.dtype))
        else:
            gates, ups, down = (
                [ctx.matrix(f"{experts}.{e}.{part}.weight", rows, columns) for e in range(num_experts)]
                for part, rows, columns in zip(parts, (inner, inner, width), (width, width, inner), strict=True)
            )
            gate_up = [torch.cat(pair) for pair in zip(gates, ups, strict=True)]
        self.gate_up = [ctx.ops.pack_linear(weight) for weight in gate_up]
        self.down = [ctx.ops.pack_linear(weight) for weight in down]

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """x [T, width] -> [T, width], plus `residual`."""
        mixed = self.ops.moe(x, self.router(x), self.gate_up, self.down, self.top_k, self.renormalize, self.act)
        return self.ops.add(mixed, residual)
