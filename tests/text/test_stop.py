from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from motet.text.stop import StopMatch, StopStrings

pieces = st.lists(st.text("ab", max_size=4), max_size=8)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def first_stop(text: str, stops: list[str], counted_from: int = 0) -> tuple[str, int, int] | None:
    """(stop, start, end) of the stop that completes first after `counted_from` characters, by looking everywhere."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if end > counted_from and text[:end].endswith(stop):
                return stop, end - len(stop), end
    return None


@settings(max_examples=200, deadline=None)
@given(pieces, stop_lists, st.booleans(), st.integers(0, 4))
def test_stream_equals_searching_the_whole_text(
    deltas: list[str], stops: list[str], include: bool, ignored: int
) -> None:
    finder = StopStrings(stops, include)
    shown = ""
    for index, delta in enumerate(deltas):
        shown += finder.feed(delta, ignore_matches=index < ignored)
        if finder.match is not None:
            break
    found = first_stop("".join(deltas), stops, len("".join(deltas[:ignored])))
    if found is None:
        assert finder.match is None
        assert shown + finder.flush() == "".join(deltas)
    else:
        stop, start, end = found
        kept = end if include else start
        assert finder.match == StopMatch(stop, kept)
        # A stop may begin in text that was shown while matches did not count; that text stays.
        assert shown == "".join(deltas)[:kept]
        assert finder.feed("more") == ""
        assert finder.flush() == ""


@settings(max_examples=200, deadline=None)
@given(pieces, stop_lists)
def test_nothing_is_held_back_without_need(deltas: list[str], stops: list[str]) -> None:
    finder = StopStrings(stops)
    fed = shown = ""
    for delta in deltas:
        fed += delta
        shown += finder.feed(delta)
        if finder.match is not None:
            return
        held = fed[len(shown) :]
        longest = max((size for stop in stops for size in range(len(stop)) if fed.endswith(stop[:size])), default=0)
        assert len(held) == longest


def test_with_inclusion_nothing_is_held_back() -> None:
    finder = StopStrings(["END"], include_in_output=True)
    assert [finder.feed(delta) for delta in ("a", "E", "N", "D", "x")] == ["a", "E", "N", "D", ""]
    assert finder.match == StopMatch("END", 4)


def test_the_first_to_complete_wins_then_the_first_listed() -> None:
    finder = StopStrings(["abcd", "bc"])
    finder.feed("xabcd")
    assert finder.match == StopMatch("bc", 2)
    finder = StopStrings(["c", "bc"])
    finder.feed("abc")
    assert finder.match == StopMatch("c", 2)
    finder = StopStrings(["bc", "c"])
    finder.feed("abc")
    assert finder.match == StopMatch("bc", 1)


def test_no_stops() -> None:
    finder = StopStrings([])
    assert finder.feed("abc") == "abc"
    assert finder.flush() == ""


def test_long_stops_cost_little() -> None:
    """A stop string of 100,000 characters that almost matches everywhere; a naive search would never end."""
    finder = StopStrings(["a" * 100_000 + "b"])
    shown = sum(len(finder.feed("a" * 10)) for _ in range(20_000))
    assert shown == 100_000
    finder.feed("b")
    assert finder.match == StopMatch("a" * 100_000 + "b", 100_000)
