"""Where the low-rank adapters of a linear layer lie: the layout that definition and kernels share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

RANK_STEP = 16  # max_rank is a multiple of it
BLOCK = 64  # outputs of a part that stand side by side in b, rank after rank


@dataclass(frozen=True)
class LoraWeights:
    """S slots for adapters of a layer with K inputs and P parts, whose N outputs stand side by side.

    a: [S, P, max_rank, K]; b: [S, blocks of all parts, max_rank, 64]; of the model's dtype, the last block of a part
    padded. What stands from the rank on means nothing
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
        num_blocks = sum(-(-width // BLOCK) for width in widths)
        return cls(
            torch.empty(num_slots, num_parts, rank, num_inputs, dtype=dtype).fill_(0),
            torch.empty(num_slots, num_blocks, rank, BLOCK, dtype=dtype).fill_(0),
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

    def blocks(self, part: int) -> slice:
        widths = torch.diff(self.ends[: part + 1], prepend=torch.zeros(1, dtype=torch.int64)).tolist()
        counts = [-(-width // BLOCK) for width in widths]
        return slice(sum(counts[:-1]), sum(counts))

    def b_of(self, slot: int, part: int) -> Tensor:
        """[outputs of the part, rank]"""
        columns, rank = self.columns(part), int(self.ranks[slot, part])
        blocks = self.b[slot, self.blocks(part), :rank].transpose(1, 2)
        return blocks.flatten(0, 1)[: columns.stop - columns.start]

    def put(self, slot: int, part: int, a: Tensor, b: Tensor, scale: float) -> None:
        """a [rank, K], b [outputs of the part, rank]."""
        rank = len(a)
        self.a[slot, part, :rank] = a
        blocks = self.blocks(part)
        padded = b.new_zeros((blocks.stop - blocks.start) * BLOCK, rank)
        padded[: len(b)] = b
        self.b[slot, blocks, :rank] = padded.view(-1, BLOCK, rank).transpose(1, 2)
        self.scales[slot, part], self.ranks[slot, part] = scale, rank

    def clear(self, slot: int) -> None:
        self.ranks[slot] = 0
