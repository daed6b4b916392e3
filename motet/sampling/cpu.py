"""The sampler on the C++ kernels: the same tokens and logprobs as `Sampler`, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from motet.core.result import TokenLogprobs
from motet.ops.cpu.greedy import greedy
from motet.ops.cpu.sampling import describe, draw
from motet.ops.cpu.target import Target
from motet.sampling.columns import SamplingView
from motet.sampling.logprobs import listed
from motet.sampling.sampler import ALL_MASKED, NOT_FINITE, OK, OVERFLOW, Sampler

PARAMETERS = ("temperature", "log_min_p", "top_k", "top_p")


class CpuSampler(Sampler):
    """Edits (biases, penalties, forbidden tokens) touch few entries and stay in torch, on a copy of the worked rows."""

    def __init__(self, target: Target) -> None:
        super().__init__(partial(greedy, target))
        self.target = target
        self._memory = torch.empty(0)

    def token_logprobs(self, logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
        if not len(logits):
            return []
        counts = torch.tensor(num_top).clamp_(max=logits.shape[1])
        values, ids, ranks = describe(self.target, logits, token_ids, counts, int(counts.max()))
        return listed(ids, values, ranks.tolist(), num_top)

    def choose_worked(self, logits: Tensor, view: SamplingView) -> tuple[Tensor, Tensor]:
        num_drawn, rows, scores = view.num_drawn, view.worked, logits
        is_bad = torch.zeros(len(rows), dtype=torch.bool)
        if view.edits:
            rows, scores = torch.arange(len(rows)), self._copy(logits, view.worked)
            is_bad = self.greedy(scores) < 0
            for edit in view.edits:
                edit.apply(scores)
        chosen = torch.empty(len(rows), dtype=torch.int64)
        if num_drawn:
            temperature, log_min_p, top_k, top_p = (_tensor(view.drawn[name]) for name in PARAMETERS)
            chosen[:num_drawn] = draw(
                self.target, scores, rows[:num_drawn], temperature, log_min_p, top_k, top_p, view.keys
            )
        if num_drawn < len(rows):
            chosen[num_drawn:] = self.greedy(scores[num_drawn:] if view.edits else scores[rows[num_drawn:]])
        status = torch.full_like(chosen, OK)
        failed = (is_bad | (chosen < 0)).nonzero().squeeze(1)
        if len(failed):
            peak = scores[rows[failed]].amax(dim=1)
            status[failed] = torch.where(peak == -torch.inf, ALL_MASKED, OVERFLOW)
            is_finite = logits[view.worked[failed]].amax(dim=1).isfinite()
            status[failed[~is_finite]] = NOT_FINITE
        return chosen, status

    def _copy(self, logits: Tensor, rows: Tensor) -> Tensor:
        """logits[rows], valid until the next call: fresh memory would cost more than the copy."""
        num_elements = len(rows) * logits.shape[1]
        if num_elements > len(self._memory):
            self._memory = torch.empty(num_elements)
        out = self._memory[:num_elements].view(len(rows), logits.shape[1])
        return torch.index_select(logits, 0, rows, out=out)


def _tensor(field: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(field.copy())
