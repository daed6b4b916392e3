"""Matrix products and embedding look-ups: the definitions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
