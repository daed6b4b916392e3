"""How a drafter that has scores chooses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from motet.sampling.columns import SamplingColumns, TokenHistory
from motet.sampling.sampler import Sampler
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
