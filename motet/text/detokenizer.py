"""Tokens to text, while they arrive.

The text of an answer is what its tokens add to the prompt's text: a space that only begins a whole text is dropped only
where no text stands before the answer, and the answer may complete a character that the prompt began. What is pushed
out never changes later: a character is held back until its last byte has come, and becomes U+FFFD only when its bytes
cannot be valid UTF-8 any more. The work per token is bounded by the token's own length.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from tokenizers.decoders import DecodeStream

from motet.text.token_bytes import TokenBytes, strip_start
from motet.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
MAX_OPEN_BYTES = 3  # a character of UTF-8 has at most four bytes
NUM_CONTEXT = 8  # prompt tokens that a decoder without a byte table gets to see


class _Steps(Protocol):
    """One token in, the text that became certain out."""

    def step(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class _ByteSteps:
    """For tokenizers whose tokens are pieces of bytes."""

    def __init__(self, pieces: TokenBytes, skipped: frozenset[int], prompt_ids: Sequence[int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        context, self._is_first_token = _context(pieces, skipped, prompt_ids)
        self._num_to_strip = 0 if context else pieces.num_stripped  # spaces are stripped from the start of a text only
        open_bytes = _open_character(context)
        self._decoder.decode(open_bytes)
        self._drop_replacement = bool(open_bytes)

    def step(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        piece = self._pieces.first(token_id) if self._is_first_token else self._pieces[token_id]
        self._is_first_token = False
        if self._num_to_strip and piece:
            stripped = strip_start(piece, self._num_to_strip)
            # A piece of nothing but spaces leaves the rest of the stripping to the next one.
            self._num_to_strip = 0 if stripped else self._num_to_strip - len(piece)
            piece = stripped
        return self._own(self._decoder.decode(piece))

    def finish(self) -> str:
        return self._own(self._decoder.decode(b"", final=True))

    def _own(self, text: str) -> str:
        """Drop the mark of a character that the prompt began and nobody completed: it belongs to the prompt."""
        if not (text and self._drop_replacement):
            return text
        self._drop_replacement = False
        return text.removeprefix(REPLACEMENT)


class _StreamSteps:
    """For other decoders (WordPiece, none at all): the library's own stream, which sees the last few tokens."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, prompt_ids: Sequence[int]) -> None:
        self._backend = tokenizer.backend
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        for token_id in prompt_ids[-NUM_CONTEXT:]:
            self._stream.step(self._backend, token_id)

    def step(self, token_id: int) -> str:
        return self._stream.step(self._backend, token_id) or ""

    def finish(self) -> str:
        return ""


class IncrementalDetokenizer:
    """Text of one answer. `token_ends[i]`: length of the text that is certain after output token i."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        self._steps: _Steps
        if tokenizer.token_bytes is None:
            self._steps = _StreamSteps(tokenizer, skip_special_tokens, prompt_ids)
        else:
            skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
            self._steps = _ByteSteps(tokenizer.token_bytes, skipped, prompt_ids)
        self.token_ends: list[int] = []
        self._text_len = 0

    def push(self, ids: Iterable[int]) -> str:
        """The text that became certain with these tokens."""
        return "".join(self.push_one(token_id) for token_id in ids)

    def push_one(self, token_id: int) -> str:
        text = self._steps.step(token_id)
        self._text_len += len(text)
        self.token_ends.append(self._text_len)
        return text

    def skip_one(self) -> None:
        """Count a token that shows no text (the one that ended the answer)."""
        self.token_ends.append(self._text_len)

    def flush(self) -> str:
        """The rest, when no more tokens come: U+FFFD for an unfinished character."""
        text = self._steps.finish()
        self._text_len += len(text)
        if self.token_ends:
            self.token_ends[-1] = self._text_len
        return text


def _context(pieces: TokenBytes, skipped: frozenset[int], prompt_ids: Sequence[int]) -> tuple[bytes, bool]:
    """The prompt's last bytes, at least as many as an unfinished character has; whether it shows no token."""
    context = b""
    is_empty = True
    for token_id in reversed(prompt_ids):
        if token_id not in skipped:
            is_empty = False
            context = pieces[token_id] + context
            if len(context) >= MAX_OPEN_BYTES:
                break
    return context, is_empty


def _open_character(text: bytes) -> bytes:
    """The bytes at the end of `text` that begin a character without completing it."""
    for size in range(1, min(MAX_OPEN_BYTES, len(text)) + 1):
        tail = text[-size:]
        if tail[0] >= 0xC0:  # a lead byte: it begins a character whatever stands before
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            return b"" if decoder.decode(tail) else tail
    return b""
