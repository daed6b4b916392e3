"""Mixture-of-experts block."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from motet.nn.context import BuildContext
from motet.nn.linear import Linear
from motet.ops.reference.activation import activation_name
from motet.tensors.forward import NO_ADAPTERS, AdapterRows


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
        self.router = Linear(ctx, router, width, num_experts, quantized=False, takes_adapters=False)
        if ctx.weights.has(f"{experts}.gate_up_proj"):
            gate_ups = _packed_stack(ctx, f"{experts}.gate_up_proj", num_experts, 2 * inner, width)
            downs = _packed_stack(ctx, f"{experts}.down_proj", num_experts, width, inner)
        else:
            gate, up, down = parts
            names = [f"{experts}.{e}" for e in range(num_experts)]
            pairs = [[f"{name}.{gate}", f"{name}.{up}"] for name in names]
            gate_ups = [Linear(ctx, pair, width, [inner, inner], takes_adapters=False).weight for pair in pairs]
            downs = [Linear(ctx, f"{name}.{down}", inner, width, takes_adapters=False).weight for name in names]
        self.gate_up, self.down = ctx.ops.pack_experts(gate_ups), ctx.ops.pack_experts(downs)

    def __call__(self, x: Tensor, residual: Tensor, adapters: AdapterRows = NO_ADAPTERS) -> Tensor:
        """x [T, width] -> [T, width], plus `residual`. No adapter changes router or experts."""
        mixed = self.ops.moe(x, self.router(x), self.gate_up, self.down, self.top_k, self.renormalize, self.act)
        return self.ops.add(mixed, residual)


def _packed_stack(ctx: BuildContext, name: str, count: int, rows: int, columns: int) -> list[Any]:
    matrices = ctx.stacked_matrices(name, count, rows, columns, ctx.scheme)
    return [ctx.ops.pack_linear(matrix, scheme=ctx.scheme) for matrix in matrices]
