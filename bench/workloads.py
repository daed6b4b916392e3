"""The measured work, the same for every engine: token-id prompts in, a fixed number of greedy tokens out.

A case builds its prompts from (seed, repetition), so that a prefix cache can help within one repetition, where the case
means it to, but never carries over from the one before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LOWEST_ID, END_ID = 100, 49000  # token ids that are valid in every model that is measured here


@dataclass(frozen=True)
class Case:
    """what: what its headline number means; num_requests are handed over at once, each with `shared_len` prompt tokens
    that all have and `own_len` of its own; new_len: tokens to generate (EOS ignored)."""

    name: str
    what: str
    num_requests: int
    shared_len: int
    own_len: int
    new_len: int

    @property
    def max_len(self) -> int:
        return self.shared_len + self.own_len + self.new_len

    def prompts(self, repetition: int, seed: int = 0) -> list[list[int]]:
        # Only ints in the seed: hash() of a str differs between processes.
        rng = random.Random((seed * 1000 + repetition) * 1000 + sum(map(ord, self.name)))
        shared = [rng.randrange(LOWEST_ID, END_ID) for _ in range(self.shared_len)]
        return [
            shared + [rng.randrange(LOWEST_ID, END_ID) for _ in range(self.own_len)] for _ in range(self.num_requests)
        ]

    def rate(self, seconds: float) -> float:
        """Tokens per second by this case's own count: prompt tokens where one token is generated, else new tokens."""
        per_request = self.shared_len + self.own_len if self.new_len == 1 else self.new_len
        return self.num_requests * per_request / seconds

    def warm_up(self) -> Case:
        """A smaller case that touches the same code."""
        if self.num_requests == 1:
            return self
        return Case(self.name, "", min(self.num_requests, 8), min(self.shared_len, 64), 32, 4)


CASES = {
    case.name: case
    for case in (
        Case("decode", "single stream, 32 + 128: new tok/s (whole request)", 1, 0, 32, 128),
        Case("prefill", "one prompt of 1024, 1 new token: prompt tok/s", 1, 0, 1024, 1),
        Case("batch64", "64 requests of 128 + 128 at once: new tok/s", 64, 0, 128, 128),
        Case("prefix32", "32 requests sharing 512, + 32 own, 64 new: new tok/s", 32, 512, 32, 64),
    )
}
