"""Matrix products and embedding look-ups: the definitions."""

from __future__ import annotations

from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from motet.ops.quantized import QuantizedMatrix
from motet.ops.reference.quantized import ReferenceMatrix, multiply
from motet.ops.reference.quantized import pack_linear as pack_quantized
from motet.ops.registry import OpSpec, Sample, define_op

Weight: TypeAlias = "Tensor | tuple[ReferenceMatrix, ...]"  # what `pack_linear` gives


def pack_linear(*parts: Tensor | QuantizedMatrix, scheme: str | None = None) -> Weight:
    """Matrices [N, K] over the same inputs, whose outputs stand side by side -> what the ops below take.

    scheme: "int8" or "int4" quantises the tensors among them, see motet.ops.reference.quantized
    """
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if scheme is None and len(tensors) == len(parts) and len({tensor.dtype for tensor in tensors}) == 1:
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return pack_quantized(*parts, scheme=scheme)


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """x [T, K] times weight [N, K] transposed, plus bias [N], plus residual [T, N]; the result has x's dtype."""
    if not isinstance(weight, Tensor) or weight.dtype is not x.dtype:
        return multiply(x, _matrices(weight), bias, residual).to(x.dtype)
    out = F.linear(x, weight, bias)
    return out if residual is None else out + residual


def logits(x: Tensor, weight: Weight, bias: Tensor | None = None, soft_cap: float | None = None) -> Tensor:
    """Scores over the vocabulary, float32 [L, V]: x [L, K] times weight [V, K] transposed, then cap * tanh(s / cap)."""
    if not isinstance(weight, Tensor) or weight.dtype is not x.dtype:
        out = multiply(x, _matrices(weight), bias, None).float()
    else:
        out = F.linear(x, weight, bias).float()
    return out if soft_cap is None else torch.tanh(out / soft_cap) * soft_cap


def embedding(ids: Tensor, table: Weight, scale: float | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Rows of table [V, H] by ids [T], rounded to `dtype` (None: the table's, float32 where it is quantised).

    `scale` is rounded to that dtype before it multiplies.
    """
    (matrix,) = _matrices(table)
    out = F.embedding(ids, matrix.values).to(dtype or matrix.values.dtype)
    return out if scale is None else out * torch.tensor(scale, dtype=out.dtype)


def _matrices(weight: Weight) -> tuple[ReferenceMatrix, ...]:
    return (ReferenceMatrix(weight, None),) if isinstance(weight, Tensor) else weight


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x [T, H] at rows [L] -> [L, H]."""
    return x.index_select(0, rows)


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


SHAPES = ((1, 1, 1), (1, 64, 64), (5, 100, 33), (7, 63, 40), (13, 192, 576))  # tokens, outputs, inputs
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def random_linear(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [T, K], weight [N, K], bias [N] and residual [T, N]."""
    num_tokens, num_outputs, num_inputs = shape
    generator = torch.Generator().manual_seed(sum(shape))
    sizes = ((num_tokens, num_inputs), (num_outputs, num_inputs), (num_outputs,), (num_tokens, num_outputs))
    x, weight, bias, residual = (torch.randn(size, generator=generator) for size in sizes)
    return x.to(dtype), (weight / num_inputs**0.5).to(dtype), bias.to(dtype), residual.to(dtype)


def _samples(with_residual: bool) -> list[Sample]:
    samples = []
    for dtype in DTYPES:
        for shape in SHAPES:
            args = random_linear(shape, dtype)
            label = f"{dtype}-{'x'.join(map(str, shape))}".removeprefix("torch.")
            samples.append(Sample(label, args if with_residual else args[:3]))
    return samples


# Backends may keep more than the definition, which rounds the product before it adds the residual.
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2**-6, 2**-6), torch.float16: (2**-9, 2**-9)}
# The definition's scores are rounded to the model's dtype first; a backend's need not be.
LOGITS_TOLERANCE = {torch.float32: (2**-7, 2**-6)}

LINEAR = define_op(OpSpec("linear", linear, lambda: _samples(with_residual=True), TOLERANCE))
LOGITS = define_op(OpSpec("logits", logits, lambda: _samples(with_residual=False), LOGITS_TOLERANCE))
