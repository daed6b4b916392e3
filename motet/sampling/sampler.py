"""The sampler: logits in, one token per row out. The torch reference of what a kernel may do in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from motet.core.result import TokenLogprobs
from motet.sampling.columns import SamplingView
from motet.sampling.draw import draw
from motet.sampling.logprobs import token_logprobs

OK, NOT_FINITE, ALL_MASKED, OVERFLOW = range(4)
ERRORS = (
    None,
    "the model gave logits that are not finite (NaN or infinity); the model or its weights are at fault",
    "no token is left to choose from: allowed_token_ids, structured_outputs, bad_words, logit_bias and min_tokens "
    "together forbid every token; loosen one of them",
    "the logits overflow float32 with this logit_bias, penalty or temperature, or a logits processor failed (the log "
    "says how); use milder values",
)


@dataclass(frozen=True)
class SampledRows:
    """Entry i belongs to row i of the logits. token_ids[i] is -1 exactly when errors[i] says why."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: list[str | None]


class Sampler:
    """Stateless. A row's outcome is a function of that row's logits, parameters, history and position alone.

    greedy: float32 [R, V] -> int64 [R], the likeliest token, the lowest id among equals; -1 where it is not finite
    """

    def __init__(self, greedy: Callable[[Tensor], Tensor]) -> None:
        self.greedy = greedy

    def token_logprobs(self, logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
        """See motet.sampling.logprobs."""
        return token_logprobs(logits, token_ids, num_top)

    def choose_worked(self, logits: Tensor, view: SamplingView) -> tuple[Tensor, Tensor]:
        """(token ids, status codes) of the rows view.worked: int64 [W]."""
        return _choose_worked(logits[view.worked], view)

    def sample(self, logits: Tensor, view: SamplingView) -> SampledRows:
        """logits: float32 [L, V], left as they are; view: what `SamplingColumns.view` gathered for these L rows."""
        assert logits.shape == (view.num_entries, view.vocab_size), (logits.shape, view.num_entries, view.vocab_size)
        if not len(view.worked):
            token_ids = self.greedy(logits)
            chosen = token_ids.tolist()
            errors = [None if token_id >= 0 else ERRORS[NOT_FINITE] for token_id in chosen]
            return SampledRows(chosen, self._describe(logits, view, token_ids), errors)
        token_ids = torch.empty(view.num_entries, dtype=torch.int64)
        status = torch.empty(view.num_entries, dtype=torch.int64)
        if len(view.plain):
            are_few = 4 * len(view.plain) < len(logits)  # else a copy costs more than the rows that nobody needs
            best = self.greedy(logits[view.plain]) if are_few else self.greedy(logits)[view.plain]
            token_ids[view.plain], status[view.plain] = best, torch.where(best < 0, NOT_FINITE, OK)
        token_ids[view.worked], status[view.worked] = self.choose_worked(logits, view)
        token_ids[status != OK] = -1
        errors = [ERRORS[code] for code in status.tolist()]
        for entry, reason in view.refused.items():
            errors[entry] = reason
        return SampledRows(token_ids.tolist(), self._describe(logits, view, token_ids), errors)

    def _describe(self, logits: Tensor, view: SamplingView, token_ids: Tensor) -> list[TokenLogprobs | None]:
        described: list[TokenLogprobs | None] = [None] * view.num_entries
        entries = [entry for entry in view.num_logprobs if token_ids[entry] >= 0]
        if entries:
            rows = logits if len(entries) == len(logits) else logits[entries]
            counts = [view.num_logprobs[entry] for entry in entries]
            for entry, logprobs in zip(entries, self.token_logprobs(rows, token_ids[entries], counts)):
                described[entry] = logprobs
        return described


def _choose_worked(work: Tensor, view: SamplingView) -> tuple[Tensor, Tensor]:
    """Rows that are drawn (the first `num_drawn`) or edited, float32 [W, V], overwritten.

    Returns (token ids, status codes), int64 [W].
    """
    is_finite = work.amax(dim=1).isfinite()
    for edit in view.edits:
        edit.apply(work)
    peak = work.amax(dim=1)
    drawn = work[: view.num_drawn]
    for narrowing in view.filters:
        narrowing.apply(drawn)
    chosen = torch.cat([draw(drawn, view.keys), work[view.num_drawn :].argmax(dim=1)])
    status = torch.where((chosen < 0) | ~peak.isfinite(), OVERFLOW, OK)
    status[peak == -torch.inf] = ALL_MASKED
    status[~is_finite] = NOT_FINITE
    return chosen, status
