"""B17 and B44, text side: text, token ids and the stop reason end at one token, however the tokens arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.core.errors import InputError
from motet.core.params import SamplingParams
from motet.text.detokenizer import IncrementalDetokenizer
from motet.text.output import NoText, OutputText, TextDelta, make_text_sink
from tests.text.sources import KINDS, tiny

STOPS = st.lists(st.sampled_from(["the", "o", "\ufffd", " d", "he quick", "\n", "g o"]), max_size=3)


def ids_of(text: str) -> list[int]:
    return tiny("byte_level").encode(text)


def run(sink: OutputText, bursts: list[list[int]]) -> tuple[str, int, str | None]:
    """All text, the number of tokens kept, and the stop."""
    text, count = "", 0
    for burst in bursts:
        delta = sink.push(burst)
        text += delta.text
        count += delta.num_tokens
        if delta.stop is not None:
            return text + sink.finish().text, count, delta.stop
    return text + sink.finish().text, count, None


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.integers(0, 399), max_size=30),
    text=st.sampled_from(["", "the quick brown fox", "dogs over the\nlazy dog one"]),
    stops=STOPS,
    include=st.booleans(),
    min_tokens=st.integers(0, 6),
    burst=st.integers(1, 7),
)
def test_bursts_equal_single_tokens_and_a_naive_search(
    kind: str, ids: list[int], text: str, stops: list[str], include: bool, min_tokens: int, burst: int
) -> None:
    tokenizer = tiny(kind)
    ids = tokenizer.encode(text, add_special_tokens=False) + ids
    prompt = tokenizer.encode("hello")

    def sink() -> OutputText:
        return OutputText(tokenizer, prompt, stops, include, min_tokens)

    single = run(sink(), [[token_id] for token_id in ids])
    assert run(sink(), [ids[at : at + burst] for at in range(0, len(ids), burst)]) == single

    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    whole = detokenizer.push(ids)
    ends = list(detokenizer.token_ends)
    whole += detokenizer.flush()
    counted_from = 0 if not ids or not min_tokens else ends[min(min_tokens, len(ids)) - 1]
    certain_len = ends[-1] if ids else 0
    for end in range(counted_from + 1, certain_len + 1):
        found = next((stop for stop in stops if whole[:end].endswith(stop)), None)
        if found is not None:
            num_tokens = 1 + next(index for index, certain in enumerate(ends) if certain >= end)
            assert single == (whole[: end if include else end - len(found)], num_tokens, found)
            return
    assert single == (whole, len(ids), None)


def test_tokens_after_the_stop_are_cut_off() -> None:
    """B17: a burst of accepted drafts that goes on after the stop string."""
    ids = ids_of("one two the fox jumps over")
    sink = OutputText(tiny("byte_level"), stops=["fox"])
    delta = sink.push(ids)
    cut = len(ids_of("one two the fox"))
    assert delta == TextDelta("one two the ", cut, "fox")
    assert sink.finish() == TextDelta("", 0, "fox")
    assert cut < len(ids)


def test_a_stop_may_span_pushes_and_is_held_back_meanwhile() -> None:
    sink = OutputText(tiny("byte_level"), stops=["two the fox"])
    shown = "".join(sink.push([token_id]).text for token_id in ids_of("one two the"))
    assert shown == "one "
    assert sink.finish().text == "two the"


def test_stops_within_min_tokens_do_not_count() -> None:
    ids = ids_of("a a a a")
    assert run(OutputText(tiny("byte_level"), stops=["a"], min_tokens=0), [ids]) == ("", 1, "a")
    text, num_tokens, stop = run(OutputText(tiny("byte_level"), stops=["a"], min_tokens=2), [ids])
    assert (text, num_tokens, stop) == ("a a ", 3, "a")


def test_the_token_that_ends_an_answer_shows_no_text() -> None:
    ids = ids_of("one the")
    eos = 2
    hidden = OutputText(tiny("byte_level"), skip_special_tokens=False)
    assert hidden.push([*ids, eos], ends_with_stop_token=True) == TextDelta("one the", len(ids) + 1)
    shown = OutputText(tiny("byte_level"), skip_special_tokens=False, include_stop=True)
    assert shown.push([*ids, eos], ends_with_stop_token=True).text == "one the<|im_end|>"
    stop_id = OutputText(tiny("byte_level"))
    assert stop_id.push(ids, ends_with_stop_token=True).text + stop_id.finish().text == "one"


def test_finish_shows_an_unfinished_character() -> None:
    tokenizer = tiny("no_prefix")
    sink = OutputText(tokenizer, stops=["x"])
    assert sink.push([tokenizer.backend.token_to_id("<0xE2>")]) == TextDelta("", 1)
    assert sink.finish() == TextDelta("\ufffd", 0)


def test_the_factory_follows_the_parameters() -> None:
    tokenizer = tiny("byte_level")
    params = SamplingParams(stop=["fox"], include_stop_str_in_output=True, min_tokens=1, skip_special_tokens=False)
    sink = make_text_sink(tokenizer, ids_of("x"), params)
    assert sink.push([1, *ids_of("the fox runs")]).text == "<|im_start|>the fox"
    for absent in (
        make_text_sink(tokenizer, [], SamplingParams(detokenize=False)),
        make_text_sink(None, [], SamplingParams()),
    ):
        assert isinstance(absent, NoText)
        assert absent.push([1, 2, 3], ends_with_stop_token=True) == TextDelta("", 3)
        assert absent.finish() == TextDelta("", 0)
    with pytest.raises(InputError, match="stop_token_ids"):
        make_text_sink(None, [], SamplingParams(stop="x"))
