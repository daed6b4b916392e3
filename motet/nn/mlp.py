"""Feed-forward blocks."""

from __future__ import annotations

from torch import Tensor

from motet.nn.context import BuildContext
from motet.nn.linear import Linear
from motet.ops.reference.activation import activation_name
from motet.tensors.forward import NO_ADAPTERS, AdapterRows


class GatedMLP:
    """down(act(gate(x)) * up(x)) (Shazeer 2020); tensors `name`.gate_proj, .up_proj and .down_proj.

    fused: `name`.gate_up_proj, gate first, takes the place of the first two.
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        width: int,
        inner: int,
        act: str = "silu",
        bias: bool = False,
        fused: bool = False,
    ) -> None:
        self.ops = ctx.ops
        self.act = activation_name(act)
        if fused:
            self.gate_up = Linear(ctx, f"{name}.gate_up_proj", width, 2 * inner, bias)
        else:
            self.gate_up = Linear(ctx, [f"{name}.gate_proj", f"{name}.up_proj"], width, [inner, inner], bias)
        self.down = Linear(ctx, f"{name}.down_proj", inner, width, bias)

    def __call__(self, x: Tensor, residual: Tensor | None = None, adapters: AdapterRows = NO_ADAPTERS) -> Tensor:
        """x [T, width] -> [T, width], plus `residual`."""
        hidden = self.ops.activation_mul(self.gate_up(x, adapters=adapters), self.act)
        return self.down(hidden, residual, adapters)


class MLP:
    """down(act(up(x))), each with a bias (Vaswani et al. 2017)."""

    def __init__(
        self, ctx: BuildContext, up: str, down: str, width: int, inner: int, act: str, transposed: bool = False
    ) -> None:
        self.ops = ctx.ops
        self.act = activation_name(act)
        self.up = Linear(ctx, up, width, inner, True, transposed)
        self.down = Linear(ctx, down, inner, width, True, transposed)

    def __call__(self, x: Tensor, residual: Tensor | None = None, adapters: AdapterRows = NO_ADAPTERS) -> Tensor:
        """x [T, width] -> [T, width], plus `residual`."""
        hidden = self.ops.activation(self.up(x, adapters=adapters), self.act)
        return self.down(hidden, residual, adapters)
