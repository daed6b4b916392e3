"""What guesses the tokens to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from motet.sampling.columns import TokenHistory
from motet.tensors.forward import ForwardBatch, ForwardOutput


@dataclass(frozen=True)
class Verified:
    """A request after a step: its row, how many tokens are known, how many drafts were verified and accepted.

    token: which of the step's tokens gave the newest one
    """

    row: int
    token: int
    num_tokens: int
    num_drafted: int
    num_accepted: int


class Drafter(Protocol):
    def propose(
        self, step: ForwardBatch, out: ForwardOutput, verified: Sequence[Verified], history: TokenHistory
    ) -> list[tuple[int, ...]]:
        """For each of `verified`, guesses of what follows its known tokens, the likeliest chain; () for none."""

    def clear(self, row: int) -> None:
        """The row belongs to another request from now on."""


class NoDrafter:
    """Where nobody asked for speculation."""

    def propose(
        self, step: ForwardBatch, out: ForwardOutput, verified: Sequence[Verified], history: TokenHistory
    ) -> list[tuple[int, ...]]:
        return [()] * len(verified)

    def clear(self, row: int) -> None:
        pass
