"""The greatest score of each row: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.registry import OpSpec, Sample, define_op


def greedy(scores: Tensor) -> Tensor:
    """scores float32 [R, V] -> int64 [R]: the column of the greatest, the lowest among equals; -1 where it is infinite
    or where the row has a NaN."""
    best = scores.argmax(dim=1)  # the lowest id among equals, and a NaN before any number
    is_finite = scores.gather(1, best[:, None]).squeeze(1).isfinite()
    return torch.where(is_finite, best, -1)


def _samples() -> list[Sample]:
    """Of several widths: ties, forbidden tokens, and rows that are not finite in one place or everywhere."""
    samples = []
    for width in (1, 7, 64, 100, 5003):
        scores = torch.randn(12, width, generator=torch.Generator().manual_seed(width))
        scores[1] = scores[1].round()
        scores[2] = -torch.inf
        scores[3, ::2] = -torch.inf
        for row, value in ((4, torch.nan), (5, torch.inf), (6, -torch.inf)):
            scores[row, -1] = value
        scores[7, 0] = torch.nan
        scores[8, width // 2] = torch.nan
        scores[9] = torch.nan
        scores[10] = 0.0
        scores[11, width // 3 :] = 1e30
        samples.append(Sample(str(width), (scores,)))
    return samples


GREEDY = define_op(OpSpec("greedy", greedy, _samples, {torch.int64: (0, 0)}))
