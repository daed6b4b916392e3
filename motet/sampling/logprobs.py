"""Log-probabilities of chosen and prompt tokens: log-softmax of the raw float32 logits, before any sampling step.

Layout and rank are vLLM's: the chosen token first, then the n likeliest in falling order (the chosen token again, if
it is one of them: whoever makes a dict merges the two); its rank is the number of tokens at least as likely as it, so
the best token has rank 1 and equals share the worse rank. Lower ids come first among equals in the list.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from motet.core.result import TokenLogprobs
from motet.sampling.blocks import row_blocks
from motet.sampling.ranking import top_ids


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Describe one token per row.

    logits: float32 [B, V], left as they are; token_ids: int64 [B], in the vocabulary; num_top[i]: how many of the
    likeliest tokens row i lists (at least 0; more than V means all). Memory beyond the result is bounded by row blocks.
    """
    described: list[TokenLogprobs] = []
    for rows in row_blocks(len(logits), logits.shape[1]):
        described += _describe(logits[rows], token_ids[rows], num_top[rows])
    return described


def prompt_logprobs(logits: Tensor, target_ids: Tensor, num_top: int) -> list[TokenLogprobs]:
    """Describe prompt tokens. logits: float32 [B, V]; target_ids: int64 [B], row i's is the token that follows it."""
    return token_logprobs(logits, target_ids, [num_top] * len(target_ids))


def _describe(logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
    logprobs = logits.log_softmax(dim=1)
    chosen = logprobs.gather(1, token_ids[:, None])
    ranks = (logprobs >= chosen).count_nonzero(dim=1).tolist()
    ids, values = token_ids[:, None], chosen
    width = min(max(num_top), logits.shape[1])
    if width > 0:
        best = top_ids(logprobs, width)
        ids, values = torch.cat([ids, best], dim=1), torch.cat([values, logprobs.gather(1, best)], dim=1)
    return [
        TokenLogprobs(row_ids[: 1 + n], row_values[: 1 + n], rank)
        for row_ids, row_values, rank, n in zip(ids.tolist(), values.tolist(), ranks, num_top)
    ]
