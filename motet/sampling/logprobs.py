"""Log-probabilities of chosen and prompt tokens: log-softmax of the raw float32 logits, before any sampling step.

A value is x - log(sum(e^x)) in float64, with the sum of `masses`, rounded once to float32. Layout and rank are vLLM's:
the chosen token first, then the n likeliest in falling order (the chosen token again, if it is one of them: whoever
makes a dict merges the two); its rank is the number of tokens whose logit is at least its own, so the best token has
rank 1 and equals share the worse rank. Lower ids come first among equals in the list.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from motet.core.result import TokenLogprobs
from motet.sampling.blocks import row_blocks
from motet.sampling.masses import normalisers
from motet.sampling.ranking import top_ids


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Describe one token per row.

    logits: float32 [B, V], left as they are; token_ids: int64 [B], in the vocabulary; num_top[i]: how many of the
    likeliest tokens row i lists (at least 0; more than V means all). A row without a finite maximum has the rank 0 and
    nothing but NaN. Memory beyond the result is bounded by row blocks.
    """
    described: list[TokenLogprobs] = []
    for rows in row_blocks(len(logits), logits.shape[1]):
        described += _describe(logits[rows], token_ids[rows], num_top[rows])
    return described


def _describe(logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
    log_sums = normalisers(logits)[:, None]
    logits = torch.where(log_sums.isfinite(), logits, torch.nan)
    chosen = logits.gather(1, token_ids[:, None])
    ranks = (logits >= chosen).count_nonzero(dim=1).tolist()
    ids, width = token_ids[:, None], min(max(num_top), logits.shape[1])
    if width > 0:
        ids = torch.cat([ids, top_ids(logits, width)], dim=1)
    values = (logits.gather(1, ids).to(torch.float64) - log_sums).to(torch.float32)
    return listed(ids, values, ranks, num_top)


def listed(ids: Tensor, values: Tensor, ranks: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """ids, values: [B, 1 + at most max(num_top)], the described token first."""
    return [
        TokenLogprobs(row_ids[: 1 + n], row_values[: 1 + n], rank)
        for row_ids, row_values, rank, n in zip(ids.tolist(), values.tolist(), ranks, num_top)
    ]
