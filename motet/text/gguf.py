"""A tokenizer from the metadata of a GGUF file; token ids equal llama.cpp's.

Keys are those of the GGUF specification (`tokenizer.ggml.*`, `tokenizer.chat_template`). Two kinds are known: "gpt2",
byte-level BPE with merges, and "llama", SentencePiece BPE with scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models

from motet.core.errors import LoadError, UnsupportedError
from motet.text.bos_eos import bos_eos_processor
from motet.text.pretokenizers import find_cut
from motet.text.sentencepiece import make_sentencepiece
from motet.text.tokenizer import Template, Tokenizer

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # token types of the specification
NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # the specification's own spelling
    "mask_token": "mask_token_id",
}
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Converters often leave out the end-of-turn id; these texts are one wherever they are a token.
END_TEXTS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "[EOT]",
)


class _Vocabulary:
    """The checked arrays of a file. An empty token gets a name of its own, as nothing can be looked up by it."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        tokens = self.require("tokens")
        self.tokens: list[str] = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(token for index, token in enumerate(self.tokens) if self.ids[token] != index)
            raise LoadError(f"the GGUF file's vocabulary has the token {twice!r} twice")
        self.types = self._array("token_type") or [1] * len(self.tokens)

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(PREFIX + key, default)

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None or len(value) == 0:
            raise LoadError(f"the GGUF file has no {PREFIX}{key}; it carries no usable tokenizer")
        return value

    def _array(self, key: str) -> list[Any] | None:
        value = self.get(key)
        if value is None:
            return None
        if len(value) < len(self.tokens):
            raise LoadError(f"the GGUF file's {PREFIX}{key} has {len(value)} entries for {len(self.tokens)} tokens")
        return list(value)

    def scores(self) -> list[float]:
        self.require("scores")
        return self._array("scores") or []

    def token(self, key: str) -> str | None:
        """The text of the token whose id is under `key`; ids outside the vocabulary count as absent."""
        token_id = self.get(key)
        return self.tokens[token_id] if token_id is not None and 0 <= token_id < len(self.tokens) else None


def tokenizer_from_gguf(metadata: Mapping[str, Any], eos_token_ids: Iterable[int] = ()) -> Tokenizer:
    """`eos_token_ids` are added to those that the file names. Raises LoadError and UnsupportedError."""
    vocabulary = _Vocabulary(metadata)
    kind = vocabulary.get("model")
    if kind == "gpt2":
        backend, adds_bos = _byte_level(vocabulary)
    elif kind == "llama":
        backend, adds_bos = _sentencepiece(vocabulary)
    else:
        raise UnsupportedError(f"the GGUF file's tokenizer kind {kind!r} is not supported; supported: gpt2, llama")
    end_ids = _end_ids(vocabulary)
    _add_special(backend, vocabulary, end_ids)
    special = {name: token for name, key in NAMED_TOKENS.items() if (token := vocabulary.token(key)) is not None}
    _add_post_processor(backend, vocabulary, special, adds_bos)
    return Tokenizer(
        backend,
        special_tokens=special,
        eos_token_ids=[*end_ids, *eos_token_ids],
        chat_template=_chat_template(metadata),
        max_length=metadata.get(f"{metadata.get('general.architecture')}.context_length"),
    )


def _byte_level(vocabulary: _Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """The backend, and whether it adds BOS when the file does not say."""
    cut = find_cut(vocabulary.get("pre", "default"))
    merges = [_split_merge(merge) for merge in vocabulary.require("merges")]
    with _fitting():
        model = models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=cut.ignore_merges)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = cut.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, cut.adds_bos


@contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library raises bare Exception
        raise LoadError(f"the GGUF file's vocabulary is damaged: {error}") from None


def _split_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(vocabulary: _Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    add_space_prefix = bool(vocabulary.get("add_space_prefix", True))
    unknown = vocabulary.token("unknown_token_id")
    scores = vocabulary.scores()
    with _fitting():
        backend = make_sentencepiece(vocabulary.tokens, scores, unknown, add_space_prefix)
    return backend, True


def _end_ids(vocabulary: _Vocabulary) -> list[int]:
    named = [token for key in END_KEYS if (token := vocabulary.token(key)) is not None]
    texts = [text for text in END_TEXTS if text in vocabulary.ids]
    if "<|return|>" in vocabulary.ids:  # harmony: <|end|> ends a message, not the answer
        texts = [text for text in texts if text != "<|end|>"]
    return [vocabulary.ids[token] for token in [*named, *texts]]


def _add_special(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary, end_ids: list[int]) -> None:
    """Control and unknown tokens (also those that end an answer, whatever their type) are special; user-defined
    ones are found in the raw text just the same, but show when decoding."""
    marked = {index for index, kind in enumerate(vocabulary.types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)}
    ends = set(end_ids)
    backend.add_tokens(
        [
            AddedToken(
                vocabulary.tokens[index],
                special=index in ends or vocabulary.types[index] != USER_DEFINED,
                normalized=False,
            )
            for index in sorted(marked | ends)
        ]
    )


def _add_post_processor(
    backend: tokenizers.Tokenizer, vocabulary: _Vocabulary, special: Mapping[str, str], adds_bos: bool
) -> None:
    wanted = {
        "bos_token": bool(vocabulary.get("add_bos_token", adds_bos)),
        "eos_token": bool(vocabulary.get("add_eos_token", False)),
    }
    bos, eos = (special.get(name) if is_wanted else None for name, is_wanted in wanted.items())
    added = [token for token in (bos, eos) if token is not None]
    if added:
        backend.post_processor = bos_eos_processor(bos, eos, [(token, vocabulary.ids[token]) for token in added])


def _chat_template(metadata: Mapping[str, Any]) -> Template | None:
    main = metadata.get("tokenizer.chat_template")
    prefix = "tokenizer.chat_template."
    named = {key.removeprefix(prefix): text for key, text in metadata.items() if key.startswith(prefix)}
    if not named:
        return main or None
    return {**({"default": main} if main else {}), **named}
