"""Which drafts of a step stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from motet.core.result import TokenLogprobs
from motet.sampling.columns import SamplingView
from motet.sampling.draw import draw
from motet.sampling.noise import stream_keys, uniforms
from motet.sampling.sampler import SampledRows, Sampler


@dataclass(frozen=True)
class Verdict:
    """Of one request: the accepted drafts and the token after them; `error`: why it cannot go on."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    error: str | None


class Verifier(Protocol):
    sampler: Sampler

    def verify(self, logits: Tensor, view: SamplingView, drafts: Sequence[tuple[int, ...]]) -> list[Verdict]:
        """logits: float32 [L, V], for each request one row per draft and one more, request after request; view: what
        `SamplingColumns.view` gathered for them, drafts counted as if they had been sampled."""


class ExactAcceptance:
    """A draft stands where it is the token that would be drawn without it.

    The noise depends on seed and position alone, so the tokens are those of a run without drafts. A draft that was not
    drawn itself is accepted with its probability, which no rule can better.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def verify(self, logits: Tensor, view: SamplingView, drafts: Sequence[tuple[int, ...]]) -> list[Verdict]:
        sampled = self.sampler.sample(logits, view)
        verdicts, first = [], 0
        for guesses in drafts:
            found = sampled.token_ids[first : first + 1 + len(guesses)]
            num_accepted = 0
            while num_accepted < len(guesses) and found[num_accepted] == guesses[num_accepted]:
                num_accepted += 1
            verdicts.append(_verdict(sampled, first, first + 1 + num_accepted))
            first += 1 + len(guesses)
        return verdicts


class RejectionAcceptance:
    """Speculative sampling (Leviathan et al., Chen et al., 2023) for drafts that were not drawn themselves.

    A draft stands with its probability p; where it does not, the token is drawn from the rest. The distribution is that
    of a run without drafts, the tokens are others. Greedy rows are verified exactly. For comparison: it is no better
    than ExactAcceptance and says nothing about the tokens.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.exact = ExactAcceptance(sampler)

    def verify(self, logits: Tensor, view: SamplingView, drafts: Sequence[tuple[int, ...]]) -> list[Verdict]:
        if not any(drafts) or not view.num_drawn:
            return self.exact.verify(logits, view, drafts)
        sampled = self.sampler.sample(logits, view)
        replaced = self._rest(logits, view, _draft_of_entry(drafts))
        verdicts, first = [], 0
        for guesses in drafts:
            end = first + 1
            for guess in guesses:
                entry, outcome = end - 1, replaced.get(end - 1)
                if outcome is None:  # a greedy row
                    is_accepted = sampled.token_ids[entry] == guess
                else:
                    is_accepted = outcome < 0
                    self._replace(sampled, entry, guess if is_accepted else outcome, logits)
                if not is_accepted or sampled.errors[entry]:
                    break
                end += 1
            verdicts.append(_verdict(sampled, first, end))
            first += 1 + len(guesses)
        return verdicts

    def _replace(self, sampled: SampledRows, entry: int, token_id: int, logits: Tensor) -> None:
        sampled.token_ids[entry] = token_id
        described = sampled.logprobs[entry]
        if described is not None:
            num_top = [len(described.token_ids) - 1]
            (sampled.logprobs[entry],) = self.sampler.token_logprobs(
                logits[entry : entry + 1], torch.tensor([token_id]), num_top
            )

    def _rest(self, logits: Tensor, view: SamplingView, draft_of_entry: list[int]) -> dict[int, int]:
        """Drawn entry with a draft -> -1 where the draft stands, else the token instead of it."""
        work = logits[view.worked]
        for edit in view.edits:
            edit.apply(work)
        scores = work[: view.num_drawn]
        for narrowing in view.filters:
            narrowing.apply(scores)
        entries = view.worked[: view.num_drawn]
        guesses = torch.tensor(draft_of_entry)[entries]
        having = (guesses >= 0).nonzero().squeeze(1)
        scores, guesses, keys = scores[having], guesses[having], view.keys[having]
        chance = scores.softmax(dim=1).gather(1, guesses[:, None]).squeeze(1)
        # A stream of its own: the noise of the draw itself is used where the draft falls.
        stands = uniforms(stream_keys(keys, torch.zeros_like(keys)), guesses) < chance
        instead = draw(scores.scatter(1, guesses[:, None], -torch.inf), keys)
        return dict(zip(entries[having].tolist(), torch.where(stands, -1, instead).tolist(), strict=True))


def _draft_of_entry(drafts: Sequence[tuple[int, ...]]) -> list[int]:
    """The draft that each logits row decides on, -1 for none."""
    return [guess for guesses in drafts for guess in (*guesses, -1)]


def _verdict(sampled: SampledRows, first: int, end: int) -> Verdict:
    error = next((error for error in sampled.errors[first:end] if error), None)
    if error:
        return Verdict((), (), error)
    logprobs = tuple(entry for entry in sampled.logprobs[first:end] if entry)
    return Verdict(tuple(sampled.token_ids[first:end]), logprobs, None)
