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
        self._taken: list[int] = []  # what the matcher has behind it; its thread's alone
        self._span = (-1, -1)
        self._output = np.zeros(0, np.int32)
        self._filled: Future[list[NextTokens]] | None = None

    def expect(self, output: npt.NDArray[np.int32], first: int, last: int) -> None:
        """Start to fill the masks after the first `first`, ..., `last` tokens of `output`.

        Those beyond `first` are drafts. Nothing happens when the same was said before.
        """
        output = output[:last].copy()
        if self._span == (first, last) and np.array_equal(self._output, output):
            return
        if self._filled is not None:
            self._filled.result()
        self._span, self._output = (first, last), output
        self._filled = self._pool.submit(self._fill, output.tolist(), last - first)

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
        """tokens: the output, the last ones drafts. After a draft that is not allowed, nothing is forbidden."""
        matcher, taken = self._opened.result(), self._taken
        settled, drafts = tokens[: len(tokens) - num_drafts], tokens[len(tokens) - num_drafts :]
        num_common = len(taken)
        if settled[:num_common] != taken:
            num_common = next(n for n, token in enumerate(taken) if settled[n : n + 1] != [token])
            matcher.rollback(len(taken) - num_common)
            del taken[num_common:]
        for token_id in settled[num_common:]:
            if not matcher.advance(token_id):
                raise InputError(f"token {token_id} does not follow the structured output")
            taken.append(token_id)
        found, num_advanced = [], 0
        for mask, draft in zip(masks, [*drafts, None]):
            matcher.fill(mask)
            found.append(NextTokens(mask, matcher.is_complete))
            if draft is None or not matcher.advance(draft):
                break
            num_advanced += 1
        matcher.rollback(num_advanced)
        masks[len(found) :] = -1
        return found + [NextTokens(mask) for mask in masks[len(found) :]]
