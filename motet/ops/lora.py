"""Where the low-rank adapters of a linear layer lie: the layout that definition and kernels share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

RANK_STEP = 16  # max_rank is a multiple of it
COLUMN_STEP = 64  # outputs that a kernel reads at once, and may read beyond the last


@dataclass(frozen=True)
class LoraWeights:
    """S slots for adapters of a layer with K inputs and P parts, whose N outputs stand side by side.

    a: [S, P, max_rank, K]; b: [S, max_rank, N and padding]; of the model's dtype. Rows from the rank on mean nothing
    scales: float32 [S, P]; ranks: int32 [S, P], 0 where the adapter does not touch a part
    ends: int64 [P], the column behind each part
    """

    a: Tensor
    b: Tensor
    scales: Tensor
    ranks: Tensor
    ends: Tensor

    @classmethod
    def allocate(
        cls, num_slots: int, num_inputs: int, widths: Sequence[int], max_rank: int, dtype: torch.dtype
    ) -> LoraWeights:
        """All zero, and written to: memory that is only promised would be given away to the KV cache."""
        num_parts, rank = len(widths), -(-max_rank // RANK_STEP) * RANK_STEP
        stride = (sum(widths) // COLUMN_STEP + 2) * COLUMN_STEP
        return cls(
            torch.empty(num_slots, num_parts, rank, num_inputs, dtype=dtype).fill_(0),
            torch.empty(num_slots, rank, stride, dtype=dtype).fill_(0),
            torch.zeros(num_slots, num_parts),
            torch.zeros(num_slots, num_parts, dtype=torch.int32),
            torch.tensor(list(accumulate(widths))),
        )

    @property
    def num_outputs(self) -> int:
        return int(self.ends[-1])

    @property
    def max_rank(self) -> int:
        return self.a.shape[2]

    def columns(self, part: int) -> slice:
        return slice(int(self.ends[part - 1]) if part else 0, int(self.ends[part]))

    def put(self, slot: int, part: int, a: Tensor, b: Tensor, scale: float) -> None:
        """a [rank, K], b [outputs of the part, rank]."""
        rank = len(a)
        self.a[slot, part, :rank] = a
        self.b[slot, :rank, self.columns(part)] = b.T
        self.scales[slot, part], self.ranks[slot, part] = scale, rank

    def clear(self, slot: int) -> None:
        self.ranks[slot] = 0
