"""Matrix products and embedding look-ups: the definitions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from motet.ops.registry import OpSpec, Sample, define_op


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """x [T, K] times weight [N, K] transposed, plus bias [N], plus residual [T, N]; the result has x's dtype."""
    out = F.linear(x, weight, bias)
    return out if residual is None else out + residual


def logits(x: Tensor, weight: Tensor, bias: Tensor | None = None, soft_cap: float | None = None) -> Tensor:
    """Scores over the vocabulary, float32 [L, V]: x [L, K] times weight [V, K] transposed, then cap * tanh(s / cap)."""
    out = F.linear(x, weight, bias).float()
    return out if soft_cap is None else torch.tanh(out / soft_cap) * soft_cap


def embedding(ids: Tensor, table: Tensor, scale: float | None = None) -> Tensor:
    """Rows of table [V, H] by ids [T]; `scale` is rounded to the table's dtype before it multiplies."""
    out = F.embedding(ids, table)
    return out if scale is None else out * torch.tensor(scale, dtype=table.dtype)


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
