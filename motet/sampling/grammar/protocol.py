"""What a grammar backend must offer. Absent: motet.sampling.grammar.grammars.NO_GRAMMARS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.int32]  # bit i % 32 of word i // 32: token i may come next


@dataclass(frozen=True)
class Vocabulary:
    """tokens[i]: the bytes of id i, one entry per logit; ids in `special_ids` (EOS among them) are never text.

    encode: how the model's tokenizer splits a text, without BOS and the like.
    """

    tokens: Sequence[bytes]
    special_ids: frozenset[int]
    eos_ids: frozenset[int]
    encode: Callable[[str], list[int]]

    @property
    def num_words(self) -> int:
        return -(-len(self.tokens) // 32)


class GrammarMatcher(Protocol):
    """Where one text stands in its grammar. One thread at a time."""

    def fill(self, mask: Mask) -> None:
        """Write which tokens may come next: int32 [num_words]. Raises InputError when the grammar costs too much."""

    def advance(self, token_id: int) -> bool:
        """Take a token. False, and nothing changed, when the grammar does not allow it."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""

    @property
    def is_complete(self) -> bool:
        """Nothing but the end of the text can follow."""


class Grammar(Protocol):
    """Compiled once, used by any number of texts."""

    def matcher(self) -> GrammarMatcher: ...


class GrammarBackend(Protocol):
    def compile(self, grammar: str) -> Grammar:
        """`grammar` has passed the trial in the helper process. Raises InputError."""
