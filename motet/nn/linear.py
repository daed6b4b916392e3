"""Linear layers, embeddings and the language-model head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from motet.nn.context import BuildContext
from motet.nn.lora import NOT_ADAPTABLE, AdapterSite
from motet.ops.quantized import select_rows
from motet.tensors.forward import NO_ADAPTERS, AdapterRows


class Linear:
    """One or several projections of the same input, computed as one.

    names: the checkpoint's modules, `outs` their output widths; the outputs stand side by side.
    transposed: the matrices are stored [in, out]. order: int64 [N], the stored output that comes at each place, of a
    single module. quantized: False where the weights stay as they are, whatever the model's scheme
    takes_adapters: False where no low-rank adapter can change the layer
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
        quantized: bool = True,
        takes_adapters: bool = True,
    ) -> None:
        names = [names] if isinstance(names, str) else names
        outs = [outs] if isinstance(outs, int) else outs
        scheme = ctx.scheme if quantized else None
        modules = list(zip(names, outs, strict=True))
        parts = [ctx.matrix(f"{name}.weight", out, in_features, scheme, transposed) for name, out in modules]
        biases = [ctx.vector(f"{name}.bias", out) for name, out in modules] if bias else []
        if order is not None:
            (part,), biases = parts, [bias[order] for bias in biases]
            parts = [select_rows(part, order)]
        self.ops = ctx.ops
        self.weight = ctx.ops.pack_linear(*parts, scheme=scheme)
        self.bias = torch.cat(biases) if biases else None
        sites = [AdapterSite(name, in_features, out, transposed) for name, out in modules]
        self.adapted = ctx.adaptable(sites, order) if takes_adapters else NOT_ADAPTABLE

    def __call__(self, x: Tensor, residual: Tensor | None = None, adapters: AdapterRows = NO_ADAPTERS) -> Tensor:
        """x [T, K] -> [T, N], plus `residual` [T, N], plus what the adapters of some rows add."""
        return self.adapted(self.ops.linear(x, self.weight, self.bias, residual), x, adapters)


class Embedding:
    """A table [V, H] of rows; also the head's matrix where the two are tied."""

    def __init__(self, ctx: BuildContext, name: str, num_rows: int, width: int, scale: float | None = None) -> None:
        self.ops = ctx.ops
        self.scale, self.dtype = scale, ctx.dtype
        self.table = _packed_table(ctx, name, num_rows, width)

    def __call__(self, ids: Tensor) -> Tensor:
        return self.ops.embedding(ids, self.table, self.scale, self.dtype)


def _packed_table(ctx: BuildContext, name: str, num_rows: int, width: int) -> Any:
    matrix = ctx.matrix(f"{name}.weight", num_rows, width, ctx.table_scheme)
    return ctx.ops.pack_linear(matrix, scheme=ctx.table_scheme)


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
        self.weight = tied.table if tied is not None else _packed_table(ctx, name, vocab_size, width)
        self.bias = ctx.vector(f"{name}.bias", vocab_size) if bias else None
        self.soft_cap = soft_cap

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden [L, H] -> float32 [L, V]."""
        return self.ops.logits(hidden, self.weight, self.bias, self.soft_cap)
