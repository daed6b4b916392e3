from __future__ import annotations

import time

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from motet.text.detokenizer import IncrementalDetokenizer
from motet.text.tokenizer import Tokenizer
from tests.text.sources import KINDS, odd_text, tiny, token_ids


def added_text(tokenizer: Tokenizer, prompt_ids: list[int], ids: list[int], skip: bool) -> str:
    """What `ids` add to the prompt's text: the whole text without the longest start that both share."""
    before = tokenizer.decode(prompt_ids, skip)
    whole = tokenizer.decode(prompt_ids + ids, skip)
    shared = 0
    while shared < len(before) and before[shared] == whole[shared : shared + 1]:
        shared += 1
    return whole[shared:]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(prompt=token_ids, ids=token_ids, skip=st.booleans(), chunk=st.integers(1, 5))
def test_stream_equals_decoding_at_once(kind: str, prompt: list[int], ids: list[int], skip: bool, chunk: int) -> None:
    """B38, with random bytes: most of these texts are not valid UTF-8."""
    tokenizer = tiny(kind)
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip)
    texts = [detokenizer.push(ids[at : at + chunk]) for at in range(0, len(ids), chunk)]
    assert "".join(texts) + detokenizer.flush() == added_text(tokenizer, prompt, ids, skip)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=odd_text, data=st.data())
def test_valid_text_never_shows_replacement_marks(kind: str, text: str, data: st.DataObject) -> None:
    """B38: emoji and CJK whose bytes are spread over tokens, cut anywhere between prompt and output."""
    tokenizer = tiny(kind)
    ids = tokenizer.encode(text, add_special_tokens=False)
    cut = data.draw(st.integers(0, len(ids)))
    detokenizer = IncrementalDetokenizer(tokenizer, ids[:cut])
    shown = [detokenizer.push([token_id]) for token_id in ids[cut:]]
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(shown)
        assert detokenizer.flush() == ""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(prompt=token_ids, ids=token_ids)
def test_token_ends_are_lengths_of_certain_text(kind: str, prompt: list[int], ids: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(tiny(kind), prompt)
    lengths = []
    text = ""
    for token_id in ids:
        text += detokenizer.push([token_id])
        lengths.append(len(text))
    assert detokenizer.token_ends == lengths
    text += detokenizer.flush()
    assert detokenizer.token_ends == [*lengths[:-1], *([len(text)] if ids else [])]


def test_an_unfinished_character_waits_and_then_becomes_a_mark() -> None:
    tokenizer = tiny("no_prefix")
    smile = [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in "😀".encode()]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.push([token_id]) for token_id in smile] == ["", "", "", "😀"]
    assert detokenizer.push(smile[:3]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.token_ends == [0, 0, 0, 1, 1, 1, 2]


def test_the_leading_space_is_dropped_only_at_the_start_of_all_text() -> None:
    tokenizer = tiny("byte_fallback")
    the = tokenizer.backend.token_to_id("▁the")
    assert IncrementalDetokenizer(tokenizer).push([the, the]) == "the the"
    assert IncrementalDetokenizer(tokenizer, [1]).push([the]) == "the"  # <s> shows nothing
    assert IncrementalDetokenizer(tokenizer, [1], skip_special_tokens=False).push([the]) == " the"
    assert IncrementalDetokenizer(tokenizer, [1, the]).push([the]) == " the"


def test_a_character_begun_by_the_prompt() -> None:
    tokenizer = tiny("no_prefix")
    euro = [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in "€".encode()]
    letter = tokenizer.backend.token_to_id("<0x41>")
    completed = IncrementalDetokenizer(tokenizer, euro[:1])
    assert completed.push(euro[1:]) + completed.flush() == "€"
    broken = IncrementalDetokenizer(tokenizer, euro[:2])
    assert broken.push([letter]) + broken.flush() == "A"
    nothing = IncrementalDetokenizer(tokenizer, euro[:2])
    assert nothing.flush() == ""


@pytest.mark.parametrize("kind", KINDS)
def test_work_per_token_is_bounded(kind: str) -> None:
    """Ten times the invalid bytes take about ten times as long, not a hundred times."""
    tokenizer = tiny(kind)
    invalid = next(token_id for token_id in range(3, 400) if tokenizer.token_bytes[token_id] == b"\x80")

    def seconds(count: int) -> float:
        detokenizer = IncrementalDetokenizer(tokenizer, [invalid] * count)
        start = time.process_time()
        for _ in range(count):
            detokenizer.push([invalid])
        return time.process_time() - start

    seconds(100)
    small = min(seconds(2_000) for _ in range(3))
    assert min(seconds(20_000) for _ in range(2)) < 40 * small


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_other_decoders_stream_through_the_library(prompt: list[int], ids: list[int]) -> None:
    vocab = {"play": 0, "##ing": 1, "the": 2, "un": 3, "##s": 4}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="un"))
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer = Tokenizer(backend)
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    text = "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.flush()
    assert text == added_text(tokenizer, prompt, ids, skip=True)
