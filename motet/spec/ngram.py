"""Drafts copied from what the request has said before (prompt lookup decoding: Saxena 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from motet.sampling.columns import TokenHistory
from motet.spec.drafter import Verified
from motet.spec.lengths import DraftLengths
from motet.tensors.forward import ForwardBatch, ForwardOutput


class NgramDrafter:
    """Looks for the last `max_ngram` tokens, or fewer down to `min_ngram`, earlier in prompt and output."""

    def __init__(self, min_ngram: int, max_ngram: int, lengths: DraftLengths) -> None:
        self.min_ngram, self.max_ngram, self.lengths = min_ngram, max_ngram, lengths

    def propose(
        self, step: ForwardBatch, out: ForwardOutput, verified: Sequence[Verified], history: TokenHistory
    ) -> list[tuple[int, ...]]:
        limits = self.lengths.limits(verified)
        return [
            continuation(history.token_ids[request.row, : request.num_tokens], self.min_ngram, self.max_ngram, limit)
            for request, limit in zip(verified, limits, strict=True)
        ]

    def clear(self, row: int) -> None:
        self.lengths.clear(row)


def continuation(tokens: npt.NDArray[np.int32], min_ngram: int, max_ngram: int, limit: int) -> tuple[int, ...]:
    """`limit` tokens that followed the longest earlier match of the end of `tokens`, int32 [N]; of equally long ones
    the last that has so many behind it. Where there are fewer up to the end, they come again, as in a loop."""
    if limit == 0:
        return ()
    ends = (tokens[:-1] == tokens[-1]).nonzero()[0]  # where a match would end
    length = 1
    while length < max_ngram and len(ends):
        longer = ends[ends >= length]
        longer = longer[tokens[longer - length] == tokens[-1 - length]]
        if not len(longer):
            break
        ends, length = longer, length + 1
    if length < min_ngram or not len(ends):
        return ()
    roomy = ends[ends + limit < len(tokens)]
    end = int(roomy[-1] if len(roomy) else ends[0]) + 1
    return tuple(np.resize(tokens[end : end + limit], limit).tolist())
