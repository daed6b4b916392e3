"""Stop strings, found while text arrives piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """`end`: length of the text to keep, counted over everything fed so far."""

    stop: str
    end: int


class _Matcher:
    """How much of one stop string the text's end spells (Knuth, Morris and Pratt's automaton)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self._num_matched = 0
        self._fallback = [0] * (len(stop) + 1)  # after i matched characters: the longest proper border of stop[:i]
        border = 0
        for index in range(1, len(stop)):
            while border and stop[index] != stop[border]:
                border = self._fallback[border]
            border += stop[index] == stop[border]
            self._fallback[index + 1] = border

    @property
    def num_open(self) -> int:
        """Characters at the text's end with which a further stop string could begin."""
        matched = self._num_matched
        return self._fallback[matched] if matched == len(self.stop) else matched

    def feed(self, char: str) -> bool:
        """True when `char` completes the stop string."""
        matched = self.num_open
        while matched and self.stop[matched] != char:
            matched = self._fallback[matched]
        if self.stop[matched] == char:
            matched += 1
        self._num_matched = matched
        return matched == len(self.stop)


class StopStrings:
    """Text in, text that is safe to show out.

    Whatever could begin a stop string is held back. The stop that completes first wins; of two that complete at the
    same character, the one listed first. Without `include_in_output` the text ends before the stop string, with it
    after, and nothing has to be held back.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self._matchers = [_Matcher(stop) for stop in stops if stop]
        self._include = include_in_output
        self._held = ""
        self._num_emitted = 0
        self.match: StopMatch | None = None

    def feed(self, delta: str, ignore_matches: bool = False) -> str:
        """Text to show now. After a match (see `match`) there is no more.

        ignore_matches: a stop string that completes within `delta` does not count (but may begin in it).
        """
        if self.match is not None:
            return ""
        if not self._matchers:
            self._num_emitted += len(delta)
            return delta
        offset = self._num_emitted + len(self._held)
        text = self._held + delta
        for index, char in enumerate(delta):
            done = [matcher for matcher in self._matchers if matcher.feed(char)]
            if done and not ignore_matches:
                return self._finish(text, done[0].stop, offset + index + 1)
        num_held = 0 if self._include else max(matcher.num_open for matcher in self._matchers)
        return self._emit(text, len(text) - num_held)

    def flush(self) -> str:
        """The text held back, when no more will come."""
        return self._emit(self._held, len(self._held))

    def _emit(self, text: str, count: int) -> str:
        self._held = text[count:]
        self._num_emitted += count
        return text[:count]

    def _finish(self, text: str, stop: str, end: int) -> str:
        kept = end if self._include else end - len(stop)
        self.match = StopMatch(stop, kept)
        shown = text[: kept - self._num_emitted]
        self._held = ""
        self._num_emitted = kept
        return shown
