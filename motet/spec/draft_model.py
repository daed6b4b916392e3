"""Drafts of a second, smaller model with the same vocabulary (Leviathan et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from motet.sampling.columns import TokenHistory
from motet.spec.choose import Chooser, grow_chains
from motet.spec.drafter import Verified
from motet.spec.lengths import DraftLengths
from motet.tensors.forward import ForwardBatch, ForwardOutput, IntArray
from motet.tensors.states import PagedState, StateStore

PREFIX = "draft."  # of the names of the second model's states

Gather = Callable[[IntArray], ForwardBatch]  # [4, R]: rows, first positions, numbers of tokens, of logits


class DraftStates:
    """What the second model finds under its own names."""

    def __init__(self, states: StateStore) -> None:
        self.states = states

    def paged(self, layer: str) -> PagedState:
        return self.states.paged(PREFIX + layer)


class Forward(Protocol):
    def run(self, batch: ForwardBatch) -> ForwardOutput: ...


class DraftModel:
    """Keeps its own K and V, in the same blocks, of the tokens that are known, and walks on from the last one."""

    def __init__(
        self, forward: Forward, gather: Gather, chooser: Chooser, lengths: DraftLengths, max_len: int, max_tokens: int
    ) -> None:
        """max_len: positions of a row; max_tokens: of one forward"""
        self.forward, self.gather, self.chooser, self.lengths = forward, gather, chooser, lengths
        self.max_len, self.max_tokens = max_len, max_tokens
        self._num_computed: dict[int, int] = {}  # by row

    def propose(
        self, step: ForwardBatch, out: ForwardOutput, verified: Sequence[Verified], history: TokenHistory
    ) -> list[tuple[int, ...]]:
        drafts = grow_chains(
            verified,
            self.lengths.limits(verified),
            self.max_len,
            lambda _, rows, ends: self._next_tokens(rows, ends, history),
        )
        for request in verified:  # what follows are guesses, to be computed again
            if request.row in self._num_computed:
                self._num_computed[request.row] = min(self._num_computed[request.row], request.num_tokens)
        return drafts

    def _next_tokens(self, rows: IntArray, ends: IntArray, history: TokenHistory) -> list[int]:
        """Compute each row up to position `end` and choose the token there."""
        starts = np.array([self._num_computed.get(row, 0) for row in rows.tolist()])
        while (ends - starts).sum() > self.max_tokens:  # a long prompt, in steps as large as the target's
            room, counts = self.max_tokens, np.zeros_like(starts)
            for index, missing in enumerate((ends - 1 - starts).tolist()):
                counts[index] = min(missing, room)
                room -= int(counts[index])
            some = counts.nonzero()[0]
            self.forward.run(self.gather(np.stack([rows, starts, counts, np.zeros_like(rows)])[:, some]))
            starts = starts + counts
        logits = self.forward.run(self.gather(np.stack([rows, starts, ends - starts, np.ones_like(rows)]))).logits
        self._num_computed.update(zip(rows.tolist(), ends.tolist(), strict=True))
        return self.chooser.choose(logits, rows, ends, history)

    def clear(self, row: int) -> None:
        self._num_computed.pop(row, None)
        self.lengths.clear(row)
