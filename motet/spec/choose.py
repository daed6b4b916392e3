"""How a drafter that has scores chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from motet.sampling.columns import SamplingColumns, TokenHistory
from motet.sampling.sampler import Sampler
from motet.spec.drafter import Verified
from motet.tensors.forward import IntArray


class Chooser:
    """The request's own sampling, with the noise of the token's position, as the target will use it: the more alike the
    two distributions are, the more often both draw the same. draws: False for the likeliest token instead
    """

    def __init__(self, sampler: Sampler, columns: SamplingColumns, draws: bool) -> None:
        self.sampler, self.columns, self.draws = sampler, columns, draws

    def choose(self, logits: Tensor, rows: IntArray, positions: IntArray, history: TokenHistory) -> list[int]:
        """logits: float32 [L, V]. The tokens, which are written into the history; -1 where logits are not finite."""
        if self.draws:
            view = replace(self.columns.view(rows, positions, history), num_logprobs={})
            token_ids = self.sampler.sample(logits, view).token_ids
        else:
            token_ids = [int(token_id) for token_id in self.sampler.greedy(logits)]
        history.token_ids[rows, positions] = np.maximum(token_ids, 0)
        return token_ids


NextTokens = Callable[[list[int], IntArray, IntArray], list[int]]


def grow_chains(
    verified: Sequence[Verified], limits: Sequence[int], max_len: int, next_tokens: NextTokens
) -> list[tuple[int, ...]]:
    """Drafts of each request, one token of all after another, up to its limit and position `max_len`.

    next_tokens: (indices into `verified`, their rows, the positions to choose for) -> tokens, -1 to end the chain
    """
    drafts: list[list[int]] = [[] for _ in verified]
    limits = [min(limit, max_len - request.num_tokens) for limit, request in zip(limits, verified, strict=True)]
    going = [index for index, limit in enumerate(limits) if limit > 0]
    while going:
        rows = np.array([verified[index].row for index in going])
        positions = np.array([verified[index].num_tokens + len(drafts[index]) for index in going])
        token_ids = next_tokens(going, rows, positions)
        alive = [(index, token_id) for index, token_id in zip(going, token_ids, strict=True) if token_id >= 0]
        for index, token_id in alive:
            drafts[index].append(token_id)
        going = [index for index, _ in alive if len(drafts[index]) < limits[index]]
    return [tuple(guesses) for guesses in drafts]
