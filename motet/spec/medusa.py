"""Drafts of heads that look at the target's last hidden state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import torch
from torch import Tensor

from motet.models.medusa import Medusa
from motet.sampling.columns import TokenHistory
from motet.spec.choose import Chooser, grow_chains
from motet.spec.drafter import Verified
from motet.spec.lengths import DraftLengths
from motet.tensors.forward import ForwardBatch, ForwardOutput, IntArray


class MedusaDrafter:
    """One chain, head after head; no tree."""

    def __init__(
        self,
        model: Medusa,
        last_hidden: Callable[[Tensor, Tensor], Tensor],
        chooser: Chooser,
        lengths: DraftLengths,
        max_len: int,
    ) -> None:
        """last_hidden: the target's final norm, of hidden [T, H] at rows int64 [L]"""
        self.model, self.last_hidden, self.chooser, self.lengths = model, last_hidden, chooser, lengths
        self.max_len = max_len

    def propose(
        self, step: ForwardBatch, out: ForwardOutput, verified: Sequence[Verified], history: TokenHistory
    ) -> list[tuple[int, ...]]:
        limits = [min(limit, len(self.model.heads)) for limit in self.lengths.limits(verified)]
        if not any(limits):
            return [()] * len(verified)
        hidden = self.last_hidden(out.hidden, torch.tensor([request.token for request in verified]))
        heads = count()

        def next_tokens(going: list[int], rows: IntArray, positions: IntArray) -> list[int]:
            return self.chooser.choose(self.model.guess(next(heads), hidden[going]), rows, positions, history)

        return grow_chains(verified, limits, self.max_len, next_tokens)

    def clear(self, row: int) -> None:
        self.lengths.clear(row)
