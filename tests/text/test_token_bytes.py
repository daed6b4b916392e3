from __future__ import annotations

import random

import pytest
import tokenizers
from hypothesis import given, settings
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from motet.text.token_bytes import byte_alphabet, make_token_bytes
from motet.text.tokenizer import Tokenizer
from tests.text.sources import KINDS, odd_text, tiny, token_ids


def test_the_alphabet_is_the_librarys() -> None:
    table = byte_alphabet()
    assert set(table) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(table.values()) == list(range(256))
    for byte in range(128):  # the library spells ASCII bytes the same way
        ((spelled, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))
        assert table[spelled] == byte


@settings(max_examples=60, deadline=None)
@given(token_ids)
def test_byte_level_text_is_the_librarys(ids: list[int]) -> None:
    tokenizer = tiny("byte_level")
    for skip in (False, True):
        assert tokenizer.decode(ids, skip) == tokenizer.backend.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["byte_fallback", "no_prefix"])
@settings(max_examples=60, deadline=None)
@given(odd_text)
def test_byte_fallback_text_is_the_librarys_for_valid_text(kind: str, text: str) -> None:
    tokenizer = tiny(kind)
    ids = tokenizer.encode(text)
    for skip in (False, True):
        assert tokenizer.decode(ids, skip) == tokenizer.backend.decode(ids, skip_special_tokens=skip)


def test_invalid_bytes_spoil_only_themselves() -> None:
    """B38: the library turns all four bytes into U+FFFD here."""
    tokenizer = tiny("no_prefix")
    ids = [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in "€".encode() + b"\xff"]
    assert tokenizer.decode(ids) == "€\ufffd"
    assert tokenizer.backend.decode(ids) == "\ufffd" * 4


@pytest.mark.parametrize("kind", KINDS)
def test_ids_without_a_token_have_no_text(kind: str) -> None:
    assert tiny(kind).decode([-1, 400, 1 << 40]) == ""
    assert tiny(kind).token_text(-5) == ""


def test_metaspace_drops_the_marks_of_the_first_token() -> None:
    vocab = {"▁a": 0, "b": 1, "▁": 2, "▁▁c": 3, "<unk>": 4}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    for scheme in ("always", "first", "never"):
        backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
        tokenizer = Tokenizer(backend)
        assert tokenizer.token_bytes is not None
        for seed in range(50):
            ids = random.Random(seed).choices(range(4), k=seed % 6)
            assert tokenizer.decode(ids) == backend.decode(ids)


@pytest.mark.parametrize("num_stripped", [1, 2, 3])
def test_stripped_spaces(num_stripped: int) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"▁": 0, "▁▁": 1, "a": 2, "▁a": 3}, merges=[]))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", num_stripped, 0)]
    )
    for seed in range(60):
        ids = random.Random(seed).choices(range(4), k=seed % 6)
        assert Tokenizer(backend).decode(ids) == backend.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
        decoders.Sequence([decoders.Replace(tokenizers.Regex("a+"), "c")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip("x", 1, 0)]),
    ],
)
def test_decoders_that_do_more_than_joining_are_left_to_the_library(decoder: object) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"aa": 0, "##b": 1, " a": 2}, unk_token="aa"))
    if decoder is not None:
        backend.decoder = decoder
    assert make_token_bytes(backend) is None
    assert Tokenizer(backend).decode([0, 1, 2, 0]) == backend.decode([0, 1, 2, 0])
    assert Tokenizer(backend).token_text(1) == backend.decode([1])


def test_added_tokens_are_written_as_they_are() -> None:
    backend = tiny("byte_level").backend.from_str(tiny("byte_level").backend.to_str())
    backend.add_tokens([AddedToken("é \n", normalized=False), AddedToken("▁x", normalized=False)])
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode([400, 401]) == "é \n▁x"
