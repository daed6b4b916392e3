from __future__ import annotations

from motet.spec.drafter import Verified
from motet.spec.lengths import PROBE_EVERY, AdaptiveLengths


def lengths_of(lengths: AdaptiveLengths, rate: float, num_steps: int, num_rows: int = 1) -> list[int]:
    """The limits of row 0 over steps in which the share `rate` of what it drafts is accepted."""
    found, drafted = [], 0
    for _ in range(num_steps):
        verified = [Verified(row, 0, 100, drafted, int(rate * drafted)) for row in range(num_rows)]
        drafted = lengths.limits(verified)[0]
        found.append(drafted)
    return found


def test_drafts_that_are_right_get_longer() -> None:
    found = lengths_of(AdaptiveLengths(8), 1.0, 20)
    assert 1 <= found[0] < 8
    assert found[-1] == 8


def test_drafts_that_are_wrong_cease_but_for_a_try_now_and_then() -> None:
    found = lengths_of(AdaptiveLengths(8), 0.0, 20 + 4 * PROBE_EVERY)
    assert sum(found[20:]) <= 5
    assert 1 in found[20:]
    assert set(found[20:]) == {0, 1}


def test_a_crowd_drafts_less_than_one() -> None:
    one = lengths_of(AdaptiveLengths(8), 0.6, 30)
    crowd = lengths_of(AdaptiveLengths(8), 0.6, 30, num_rows=64)
    assert sum(crowd) < sum(one)


def test_a_new_request_begins_anew() -> None:
    lengths = AdaptiveLengths(8)
    first = lengths_of(lengths, 0.0, 30)
    lengths.clear(0)
    assert lengths_of(lengths, 0.0, 1) == first[:1]
