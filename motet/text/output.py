"""The text side of one request: tokens in; text, the number of tokens to keep and the reason to stop out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from motet.core.errors import InputError
from motet.core.params import SamplingParams
from motet.text.detokenizer import IncrementalDetokenizer
from motet.text.stop import StopStrings
from motet.text.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """`num_tokens`: how many of the pushed tokens belong to the answer; `stop`: the stop string that ended it."""

    text: str
    num_tokens: int
    stop: str | None = None


class TextSink(Protocol):
    """What the engine holds per request; after a stop it takes no more tokens."""

    def push(self, token_ids: Sequence[int], ends_with_stop_token: bool = False) -> TextDelta:
        """`ends_with_stop_token`: the last token ended the answer (EOS or a stop token id)."""

    def finish(self) -> TextDelta:
        """The text still held back. `num_tokens` is 0."""


class NoText:
    """The sink of requests that want token ids only."""

    def push(self, token_ids: Sequence[int], ends_with_stop_token: bool = False) -> TextDelta:
        return TextDelta("", len(token_ids))

    def finish(self) -> TextDelta:
        return TextDelta("", 0)


class OutputText:
    """Detokenises an answer and ends it at a stop string.

    Text, token ids, logprobs and usage end at the token that completes the stop string, however many tokens came
    with it in the same push. Stop strings that complete within the first `min_tokens` tokens do not count. A token that
    ends the answer by itself shows no text unless `include_stop` is set (vLLM's include_stop_str_in_output).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        stops: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids, skip_special_tokens)
        self._stops = StopStrings(stops, include_stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int], ends_with_stop_token: bool = False) -> TextDelta:
        shown: list[str] = []
        last = len(token_ids) - 1
        for index, token_id in enumerate(token_ids):
            self._num_tokens += 1
            if index == last and ends_with_stop_token and not self._include_stop:
                self._detokenizer.skip_one()
                continue
            text = self._detokenizer.push_one(token_id)
            shown.append(self._stops.feed(text, ignore_matches=self._num_tokens <= self._min_tokens))
            if self._stops.match is not None:
                return TextDelta("".join(shown), index + 1, self._stops.match.stop)
        return TextDelta("".join(shown), len(token_ids))

    def finish(self) -> TextDelta:
        if self._stops.match is not None:
            return TextDelta("", 0, self._stops.match.stop)
        rest = self._stops.feed(self._detokenizer.flush(), ignore_matches=True)
        return TextDelta(rest + self._stops.flush(), 0)


def make_text_sink(tokenizer: Tokenizer | None, prompt_ids: Sequence[int], params: SamplingParams) -> TextSink:
    """The sink that a request's parameters ask for. Raises InputError for stop strings without a tokenizer."""
    if tokenizer is None and params.stop_strings:
        raise InputError("stop strings need a tokenizer (skip_tokenizer_init is set); use stop_token_ids")
    if tokenizer is None or not params.detokenize:
        return NoText()
    return OutputText(
        tokenizer,
        prompt_ids,
        params.stop_strings,
        params.include_stop_str_in_output,
        params.min_tokens,
        params.skip_special_tokens,
    )
