"""The greatest score of each row on the C++ kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.cpu.target import Target


def greedy(target: Target, scores: Tensor) -> Tensor:
    """scores float32 [R, V] -> int64 [R]: the column of the greatest, the lowest among equals; -1 where it is infinite
    or where the row has a NaN. Raises ValueError for other dtypes and shapes."""
    if scores.dtype is not torch.float32 or scores.dim() != 2 or not scores.shape[1]:
        raise ValueError(f"scores must be float32 [R, V], got {scores.dtype} {list(scores.shape)}")
    scores = scores.contiguous()
    token_ids = target.empty(scores, dtype=torch.int64)
    target.calls.greedy(token_ids.data_ptr(), scores.data_ptr(), target.num_rows(scores), scores.shape[1])
    return token_ids
