"""How many drafts are worth their cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from motet.spec.drafter import Verified

BREAK_EVEN_TOKENS = 22  # a step of so many tokens computes as long as it reads weights (SmolLM2 in bfloat16, two cores)
MEMORY = 0.8  # what the past weighs after another step
PRIOR_TRIALS, PRIOR_RATE = 2.0, 0.7
PROBE_EVERY = 16  # steps, where no draft is worth it, until one is tried again


class DraftLengths(Protocol):
    def limits(self, verified: Sequence[Verified]) -> list[int]:
        """Most drafts that each request should have in its next step."""

    def clear(self, row: int) -> None: ...


class FixedLengths:
    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts

    def limits(self, verified: Sequence[Verified]) -> list[int]:
        return [self.num_drafts] * len(verified)

    def clear(self, row: int) -> None:
        pass


class AdaptiveLengths:
    """The length with the most tokens per second, by the request's own acceptance rate of late.

    With the rate r, d drafts give 1 + r + ... + r^d tokens. In a step of B requests they add the share c = B / (B + b)
    each to the cost of the request's part of the step (b: BREAK_EVEN_TOKENS), 1 + c d in all.
    """

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts
        self._trials: dict[int, float] = {}
        self._accepted: dict[int, float] = {}
        self._idle: dict[int, int] = {}  # steps without drafts

    def limits(self, verified: Sequence[Verified]) -> list[int]:
        cost = len(verified) / (len(verified) + BREAK_EVEN_TOKENS)
        return [self._limit(request, cost) for request in verified]

    def _limit(self, request: Verified, cost: float) -> int:
        row = request.row
        trials = self._trials.get(row, PRIOR_TRIALS)
        accepted = self._accepted.get(row, PRIOR_TRIALS * PRIOR_RATE)
        if request.num_drafted:
            trials = MEMORY * trials + min(request.num_drafted, request.num_accepted + 1)
            accepted = MEMORY * accepted + request.num_accepted
            self._trials[row], self._accepted[row] = trials, accepted
        best, best_speed, tokens, chance = 0, 1.0, 1.0, 1.0
        for length in range(1, self.num_drafts + 1):
            chance *= accepted / trials
            tokens += chance
            if tokens / (1 + cost * length) > best_speed:
                best, best_speed = length, tokens / (1 + cost * length)
        self._idle[row] = 0 if best else self._idle.get(row, 0) + 1
        return best or int(self._idle[row] % PROBE_EVERY == 0)

    def clear(self, row: int) -> None:
        for column in (self._trials, self._accepted, self._idle):
            column.pop(row, None)
