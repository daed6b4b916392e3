"""Slots of adapters: one in use never gives way, and the least recently used of the others does first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from motet.core.plan import AdapterLoad
from motet.sched.adapters import AdapterSlots


@dataclass(frozen=True)
class Named:
    key: str


A, B, C = map(Named, "abc")


def test_the_least_recently_used_gives_way() -> None:
    slots = AdapterSlots(2)
    assert [slots.take(one) for one in (None, A, B, A)] == [0, 1, 2, 1]
    assert slots.take_loads() == (AdapterLoad(1, "a"), AdapterLoad(2, "b"))
    assert not slots.has_room(C)
    assert slots.has_room(None)
    slots.give_back(A)
    assert not slots.has_room(C)  # another request has it still
    for one in (A, B, None):
        slots.give_back(one)
    assert slots.take(C) == 2  # a was used after b
    assert slots.take_loads() == (AdapterLoad(2, "c"),)
    assert slots.take(A) == 1
    assert slots.take_loads() == ()


def test_forgotten_adapters_are_loaded_again() -> None:
    slots = AdapterSlots(1)
    slots.take(A)
    slots.give_back(A)
    slots.take_loads()
    slots.forget()
    slots.take(A)
    assert slots.take_loads() == (AdapterLoad(1, "a"),)


@given(st.integers(1, 3), st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=60))
def test_what_runs_finds_its_own_weights(num_slots: int, actions: list[tuple[bool, int]]) -> None:
    slots, running = AdapterSlots(num_slots), Counter[str]()
    memory: dict[int, str] = {}  # the runner's
    for enters, index in actions:
        adapter = Named(str(index))
        if enters and slots.has_room(adapter):
            slot = slots.take(adapter)
            memory.update({load.slot: load.key for load in slots.take_loads()})
            running[adapter.key] += 1
            assert memory[slot] == adapter.key
        elif enters:
            assert len(+running) == num_slots
        elif running[adapter.key]:
            slots.give_back(adapter)
            running[adapter.key] -= 1
        assert set(+running) <= set(memory.values())
        slots.check(+running)
