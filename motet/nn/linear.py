"""Linear layers, embeddings and the language-model head."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.nn.context import BuildContext


class Linear:
    """One or several projections of the same input, stored as one matrix.

    names: the checkpoint's modules, `outs` their output widths; the outputs stand side by side.
    transposed: the matrices are stored [in, out]. order: int64 [N], the stored output that comes at each place.
    """

    def __init__(
        self,
        ctx: BuildContext,
        names: str | list[str],
        in_features: int,
        outs: int | list[int],
        bias: bool = False,
        transposed: bool = False,
        order: Tensor | None = None,
    ) -> None:
        names = [names] if isinstance(names, str) else names
        outs = [outs] if isinstance(outs, int) else outs
        parts = [
            ctx.matrix(f"{name}.weight", out, in_features, transposed) for name, out in zip(names, outs, strict=True)
        ]
        biases = [ctx.vector(f"{name}.bias", out) for name, out in zip(names, outs, strict=True)] if bias else []
        self.ops = ctx.ops
        self.weight = ctx.ops.pack_linear(_joined(parts, order))
        self.bias = _joined(biases, order) if biases else None

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [T, K] -> [T, N], plus `residual` [T, N]."""
        return self.ops.linear(x, self.weight, self.bias, residual)


def _joined(parts: list[Tensor], order: Tensor | None) -> Tensor:
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    return joined if order is None else joined[order]


class Embedding:
    """A table [V, H] of rows; also the head's matrix where the two are tied."""

    def __init__(self, ctx: BuildContext, name: str, num_rows: int, width: int, scale: float | None = None) -> None:
        self.ops = ctx.ops
        self.scale, self.dtype = scale, ctx.dtype
        self.table = ctx.ops.pack_linear(ctx.matrix(f"{name}.weight", num_rows, width))

    def __call__(self, ids: Tensor) -> Tensor:
        return self.ops.embedding(ids, self.table, self.scale, self.dtype)


class LMHead:
    """Scores over the vocabulary. `tied`: the embedding whose table is used, or None for an own matrix `name`."""

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        vocab_size: int,
        width: int,
        tied: Embedding | None = None,
        bias: bool = False,
        soft_cap: float | None = None,
    ) -> None:
        self.ops = ctx.ops
        if tied is not None:
            self.weight = tied.table
        else:
            self.weight = ctx.ops.pack_linear(ctx.matrix(f"{name}.weight", vocab_size, width))
        self.bias = ctx.vector(f"{name}.bias", vocab_size) if bias else None
        self.soft_cap = soft_cap

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden [L, H] -> float32 [L, V]."""
        return self.ops.logits(hidden, self.weight, self.bias, self.soft_cap)
