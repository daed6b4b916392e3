from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.core.params import RowSampling
from motet.core.request import Request
from motet.sched.queue import POLICIES, FirstComeQueue, PriorityQueue, urgency


def requests_of(*ranks: tuple[int, float]) -> list[Request]:
    return [
        Request(f"r{i}", [1], RowSampling(), max_tokens=1, priority=priority, arrival=arrival, sequence=i)
        for i, (priority, arrival) in enumerate(ranks)
    ]


def test_first_come_keeps_the_order_of_arrival_and_ignores_priority():
    queue, (a, b, c) = FirstComeQueue(), requests_of((5, 9.0), (0, 0.0), (1, 1.0))
    for request in (a, b, c):
        queue.push(request)
    queue.remove(b)
    assert list(queue) == [a, c]
    assert queue.peek() is a


def test_first_come_puts_preempted_requests_in_front_in_their_old_order():
    queue, (a, b, c) = FirstComeQueue(), requests_of((0, 0.0), (0, 0.0), (0, 0.0))
    queue.push(c)
    queue.put_back(b)  # the victim that was admitted last is preempted first
    queue.put_back(a)
    assert list(queue) == [a, b, c]


def test_first_come_victim_is_the_last_one_admitted():
    a, b, c = requests_of((0, 0.0), (0, 0.0), (0, 0.0))
    assert FirstComeQueue().victim({c: None, a: None, b: None}) is b


def test_priority_victim_is_the_largest_priority_then_the_latest():
    a, b, c, d = requests_of((1, 2.0), (1, 3.0), (1, 3.0), (0, 9.0))
    assert PriorityQueue().victim(dict.fromkeys([c, a, b, d])) is c


@given(st.lists(st.tuples(st.integers(-1, 1), st.sampled_from([0.0, 1.0]), st.integers(0, 2)), max_size=30))
def test_priority_order_with_removals(entries):
    queue, kept = PriorityQueue(), []
    for request, (_, _, fate) in zip(requests_of(*[(p, a) for p, a, _ in entries]), entries, strict=True):
        (queue.put_back if fate == 1 else queue.push)(request)
        kept.append(request)
        if fate == 2:
            removed = kept.pop(len(kept) // 2)
            queue.remove(removed)
    kept.sort(key=urgency)
    assert list(queue) == kept
    assert len(queue) == len(kept)
    assert not kept or queue.peek() is kept[0]


def test_policies_have_the_names_of_the_option():
    assert set(POLICIES) == {"fcfs", "priority"}
