from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from motet.core.errors import UnsupportedError
from motet.text.gguf import tokenizer_from_gguf
from motet.text.pretokenizers import CUTS, find_cut
from tests.text.packaged import ODD_TEXTS, LlamaCpp, write_gguf
from tests.text.sources import byte_level_metadata
from tests.tokenizers_tiny import LINES

ONE_NAME_EACH = sorted({cut: name for name, cut in CUTS.items()}.values())
# llama.cpp's stand-ins for these two leave combining marks out of words; the models were trained with the marks in.
WITH_MARKS = {"tekken", "llama4"}
DIGITS = [f"{'1' * size} {'0123456789'[:size]}x{'9' * size}." for size in range(1, 11)]


@pytest.mark.parametrize("name", ONE_NAME_EACH)
def test_ids_equal_llama_cpp(name: str, tmp_path: Path) -> None:
    """The vocabulary merges across any cut, so a cut in the wrong place changes the ids."""
    metadata = byte_level_metadata(name)
    oracle = LlamaCpp(write_gguf(tmp_path / "vocabulary.gguf", metadata))
    tokenizer = tokenizer_from_gguf(metadata)
    for text in [*LINES, *ODD_TEXTS, *DIGITS]:
        if name in WITH_MARKS and any(
            unicodedata.combining(char) or unicodedata.category(char) == "Mc" for char in text
        ):
            continue
        expected = oracle.encode(text)
        if expected[:2] == [0, 0]:
            expected = expected[1:]  # llama.cpp adds a second BOS to a text that begins with one
        assert tokenizer.encode(text) == expected, text


def test_the_vocabulary_of_this_test_tells_the_cuts_apart() -> None:
    texts = [*LINES, *ODD_TEXTS, *DIGITS]
    seen: dict[tuple[str, ...], list[list[int]]] = {}
    for name in ONE_NAME_EACH:
        tokenizer = tokenizer_from_gguf(byte_level_metadata(name))
        seen[CUTS[name].patterns] = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert all(seen[left] != seen[right] for left in seen for right in seen if left != right)


def test_words_that_are_tokens_are_taken_whole() -> None:
    """Llama 3's rule: "qzqz" is a token that no merge leads to."""
    metadata = byte_level_metadata("llama-bpe")
    tokens = [*metadata["tokenizer.ggml.tokens"], "qzqz"]
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3)}
    whole = tokenizer_from_gguf({**metadata, **changed})
    assert whole.encode("qzqz", add_special_tokens=False) == [len(tokens) - 1]
    merged = tokenizer_from_gguf({**metadata, **changed, "tokenizer.ggml.pre": "dbrx"})
    assert len(merged.encode("qzqz", add_special_tokens=False)) > 1


def test_unknown_names() -> None:
    with pytest.raises(UnsupportedError, match=r"'kimi-k9' is not supported; supported: .*llama-bpe"):
        find_cut("kimi-k9")
