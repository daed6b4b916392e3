"""The grammar of one row of the batch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from motet.core.errors import InputError
from motet.sampling.grammar.protocol import GrammarMatcher, Mask


@dataclass(frozen=True)
class NextTokens:
    """mask: int32 [num_words], what may come next; is_complete: nothing but EOS may; error: why nothing may."""

    mask: Mask
    is_complete: bool = False
    error: str | None = None


class RowGrammar:
    """Follows the row's output, on a thread of `pool`; the rest is called by the runner's thread.

    A step first says what it will ask (`expect`), then runs its forward, then asks (`at`). Which tokens were taken is
    read off the output itself: a new row for an old request, or rejected drafts, need no word of their own.
    """

    def __init__(self, pool: Executor, make_matcher: Callable[[], GrammarMatcher], num_words: int) -> None:
        self._pool, self._num_words = pool, num_words
        self._opened = pool.submit(make_matcher)
        self._num_taken = 0  # output tokens that the matcher has behind it for good
        self._span = (-1, -1)
        self._filled: Future[list[NextTokens]] | None = None

    def expect(self, output: npt.NDArray[np.int32], first: int, last: int) -> None:
        """Start to fill the masks after the first `first`, ..., `last` tokens of `output`.

        Those beyond `first` are drafts. Nothing happens when the same was said before.
        """
        if self._span == (first, last):
            return
        if self._filled is not None:
            self._filled.result()
        tokens, self._span = output[self._num_taken : last].tolist(), (first, last)
        self._filled = self._pool.submit(self._fill, tokens, last - first)

    def at(self, num_outputs: int) -> NextTokens:
        """After `num_outputs` output tokens, a number within what `expect` was told. Waits for it."""
        assert self._filled is not None
        first, last = self._span
        assert first <= num_outputs <= last, f"{num_outputs} outputs, expected {first} to {last}"
        return self._filled.result()[num_outputs - first]

    def _fill(self, tokens: list[int], num_drafts: int) -> list[NextTokens]:
        masks = np.zeros((num_drafts + 1, self._num_words), np.int32)
        try:
            return self._fill_masks(masks, tokens, num_drafts)
        except InputError as error:
            masks[:] = 0
            return [NextTokens(mask, error=str(error)) for mask in masks]

    def _fill_masks(self, masks: Mask, tokens: list[int], num_drafts: int) -> list[NextTokens]:
        """tokens: those that are new, then the drafts. After a draft that is not allowed, nothing is forbidden."""
        matcher = self._opened.result()
        num_new = len(tokens) - num_drafts
        for token_id in tokens[:num_new]:
            if not matcher.advance(token_id):
                raise InputError(f"token {token_id} does not follow the structured output")
            self._num_taken += 1
        found, num_advanced = [], 0
        for mask, draft in zip(masks, [*tokens[num_new:], None]):
            matcher.fill(mask)
            found.append(NextTokens(mask, matcher.is_complete))
            if draft is None or not matcher.advance(draft):
                break
            num_advanced += 1
        matcher.rollback(num_advanced)
        masks[len(found) :] = -1
        return found + [NextTokens(mask) for mask in masks[len(found) :]]
