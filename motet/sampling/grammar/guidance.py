"""Grammars by llguidance: Earley parsing over derivatives of expressions, masks computed when they are needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from motet.core.errors import InputError
from motet.sampling.grammar.helper import make_matcher, make_tokenizer
from motet.sampling.grammar.protocol import Mask, Vocabulary


class GuidanceMatcher:
    """EOS is kept out of the parser: it is allowed where the text may end, and changes nothing in the grammar."""

    def __init__(self, matcher: Any, eos_ids: frozenset[int], eos_mask: Mask) -> None:
        self._matcher, self._eos_ids, self._eos_mask = matcher, eos_ids, eos_mask
        self._num_ends = 0  # EOS tokens taken; nothing else comes after one

    def fill(self, mask: Mask) -> None:
        if self._num_ends:
            mask[:] = self._eos_mask
            return
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise InputError(f"the structured output became too complex: {self._reason()}")

    def advance(self, token_id: int) -> bool:
        if token_id in self._eos_ids:
            is_allowed = self._num_ends > 0 or self._matcher.is_accepting()
            self._num_ends += is_allowed
            return bool(is_allowed)
        return not self._num_ends and self._matcher.try_consume_tokens([token_id]) == 1

    def rollback(self, num_tokens: int) -> None:
        num_ends = min(num_tokens, self._num_ends)
        self._num_ends -= num_ends
        if num_tokens > num_ends and not self._matcher.rollback(num_tokens - num_ends):
            raise InputError(f"the structured output cannot go back: {self._reason()}")

    def _reason(self) -> str:
        return str(self._matcher.get_error()).partition("\n<")[0][:1000]  # what follows is the parser's own state

    @property
    def is_complete(self) -> bool:
        return self._num_ends > 0 or bool(self._matcher.is_stopped() and self._matcher.is_accepting())


class GuidanceGrammar:
    def __init__(self, matcher: Any, vocabulary: Vocabulary) -> None:
        self._matcher, self._eos_ids = matcher, vocabulary.eos_ids
        bits = np.zeros(32 * vocabulary.num_words, np.uint8)
        bits[list(vocabulary.eos_ids)] = 1
        self._eos_mask: Mask = np.packbits(bits, bitorder="little").view(np.int32)

    def matcher(self) -> GuidanceMatcher:
        return GuidanceMatcher(self._matcher.deep_copy(), self._eos_ids, self._eos_mask)


class GuidanceBackend:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = make_tokenizer(
            list(vocabulary.tokens), sorted(vocabulary.special_ids), sorted(vocabulary.eos_ids), vocabulary.encode
        )

    def compile(self, grammar: str) -> GuidanceGrammar:
        try:
            return GuidanceGrammar(make_matcher(self._tokenizer, grammar), self._vocabulary)
        except ValueError as error:
            raise InputError(f"the grammar does not compile: {error}") from None
