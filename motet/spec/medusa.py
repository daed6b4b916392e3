"""Drafts of heads that look at the target's last hidden state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from motet.models.medusa import Medusa
from motet.sampling.columns import TokenHistory
from motet.spec.choose import Chooser
from motet.spec.drafter import Verified
from motet.spec.lengths import DraftLengths
from motet.tensors.forward import ForwardBatch, ForwardOutput


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
        most = len(self.model.heads)
        limits = [
            min(limit, most, self.max_len - request.num_tokens)
            for limit, request in zip(self.lengths.limits(verified), verified, strict=True)
        ]
        drafts: list[list[int]] = [[] for _ in verified]
        hidden = self.last_hidden(out.hidden, torch.tensor([request.token for request in verified]))
        for head in range(most):
            going = [index for index, limit in enumerate(limits) if head < limit]
            if not going:
                break
            logits = self.model.guess(head, hidden[going])
            rows = np.array([verified[index].row for index in going])
            positions = np.array([verified[index].num_tokens + head for index in going])
            for index, token_id in zip(going, self.chooser.choose(logits, rows, positions, history), strict=True):
                if token_id >= 0:
                    drafts[index].append(token_id)
                else:
                    limits[index] = 0
        return [tuple(guesses) for guesses in drafts]

    def clear(self, row: int) -> None:
        self.lengths.clear(row)
