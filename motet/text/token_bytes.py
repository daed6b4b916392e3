"""The bytes that each token stands for.

Text of byte-level and byte-fallback tokenizers is a concatenation of bytes, one piece per token, read as UTF-8. Knowing
the pieces makes decoding incremental and exact: bytes that are not valid UTF-8 become one U+FFFD per maximal invalid
part (the practice that the Unicode standard recommends, section 3.9), whichever tokens they come from. The tokenizers
library gives the same text, except that it spoils the valid characters next to an invalid byte-fallback token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import tokenizers

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """The characters that stand for the 256 bytes in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 characters stand for themselves; the rest take the code points from 256 upwards, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


class TokenBytes:
    """Token id -> bytes, filled as ids are asked for. Ids without a token have no bytes.

    num_stripped: spaces that a decoder takes off the start of a whole text.
    first_drops_marks: the first token of a text loses all its space marks (the Metaspace decoder's rule).
    """

    def __init__(self, backend: tokenizers.Tokenizer, steps: list[dict[str, Any]]) -> None:
        self._backend = backend
        self._added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
        self._cache: dict[int, bytes] = {}
        self._byte_level = any(step["type"] == "ByteLevel" for step in steps)
        self._byte_fallback = any(step["type"] == "ByteFallback" for step in steps)
        self._replaced = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
        marks = [step for step in steps if step["type"] == "Metaspace"]
        self._replaced += [(step["replacement"], " ") for step in marks]
        self._mark = marks[0]["replacement"] if marks else ""
        self.first_drops_marks = any(step.get("prepend_scheme", "always") != "never" for step in marks)
        self.num_stripped = sum(step["start"] for step in steps if step["type"] == "Strip")

    def __getitem__(self, token_id: int) -> bytes:
        piece = self._cache.get(token_id)
        if piece is None:
            piece = self._cache[token_id] = self._convert(token_id)
        return piece

    def first(self, token_id: int) -> bytes:
        """The bytes of a token that begins a text. `num_stripped` is left to the caller."""
        if self.first_drops_marks and token_id not in self._added:
            return self._encode((self._name(token_id) or "").replace(self._mark, ""))
        return self[token_id]

    def join(self, token_ids: Iterable[int]) -> bytes:
        """The bytes of a whole text."""
        pieces = [self[token_id] if index else self.first(token_id) for index, token_id in enumerate(token_ids)]
        return strip_start(b"".join(pieces), self.num_stripped)

    def _name(self, token_id: int) -> str | None:
        return self._backend.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None

    def _convert(self, token_id: int) -> bytes:
        if token_id in self._added:  # written as it is, whatever the vocabulary's alphabet
            return self._added[token_id].encode()
        name = self._name(token_id)
        return b"" if name is None else self._encode(name)

    def _encode(self, name: str) -> bytes:
        if self._byte_level:
            table = byte_alphabet()
            if all(char in table for char in name):
                return bytes(table[char] for char in name)
            return name.encode()
        if self._byte_fallback and (match := BYTE_TOKEN.fullmatch(name)):
            return bytes([int(match[1], 16)])
        for mark, text in self._replaced:
            name = name.replace(mark, text)
        return name.encode()


def strip_start(text: bytes, num_spaces: int) -> bytes:
    """Take up to `num_spaces` spaces off the start."""
    count = 0
    while count < num_spaces and text[count : count + 1] == b" ":
        count += 1
    return text[count:]


def make_token_bytes(backend: tokenizers.Tokenizer) -> TokenBytes | None:
    """None when the decoder does more than to join pieces (WordPiece, CTC, no decoder at all, ...)."""
    decoder = backend.decoder
    if decoder is None:
        return None
    steps = _flatten(json.loads(decoder.__getstate__()))
    return TokenBytes(backend, steps) if _joins_pieces(steps) else None


def _flatten(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in _flatten(part)]


def _joins_pieces(steps: list[dict[str, Any]]) -> bool:
    """Whether the text is the concatenation of one piece per token, but for spaces stripped from its start."""
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return True
    if not set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return False
    fused = False
    for step in steps:
        if step["type"] == "Fuse":
            fused = True
        elif step["type"] == "Replace" and ("String" not in step["pattern"] or fused):
            return False
        elif step["type"] == "Strip" and not (fused and step["content"] == " " and step["stop"] == 0):
            return False
    return kinds.count("Metaspace") <= 1
