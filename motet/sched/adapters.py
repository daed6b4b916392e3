"""Which adapters are in the runner's memory, and where."""

from __future__ import annotations

from collections import Counter, OrderedDict

from motet.core.lora import LoadedAdapter
from motet.core.plan import AdapterLoad


class AdapterSlots:
    """At most `num_slots` adapters; one that no running request uses gives way, the least recently used first.

    Slots count from 1; 0 is the slot of a request without an adapter, which always finds room.
    """

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots, 0, -1))
        # By key, in order of use. The adapters themselves are kept alive: a launched plan may still have to load them.
        self._slots: OrderedDict[str, tuple[int, LoadedAdapter]] = OrderedDict()
        self._users: Counter[str] = Counter()
        self._loads: list[AdapterLoad] = []

    def has_room(self, adapter: LoadedAdapter | None) -> bool:
        return adapter is None or adapter.key in self._slots or bool(self._free) or self._idle() is not None

    def take(self, adapter: LoadedAdapter | None) -> int:
        """The slot for one more running request, for which there is room; loads the adapter if need be."""
        if adapter is None:
            return 0
        if adapter.key not in self._slots:
            idle = self._idle()
            slot = self._free.pop() if self._free or idle is None else self._slots.pop(idle)[0]
            self._slots[adapter.key] = slot, adapter
            self._loads.append(AdapterLoad(slot, adapter.key))
        self._slots.move_to_end(adapter.key)
        self._users[adapter.key] += 1
        return self._slots[adapter.key][0]

    def give_back(self, adapter: LoadedAdapter | None) -> None:
        if adapter is not None:
            self._users[adapter.key] -= 1

    def _idle(self) -> str | None:
        return next((key for key in self._slots if not self._users[key]), None)

    def take_loads(self) -> tuple[AdapterLoad, ...]:
        """What the next plan has to load."""
        loads = tuple(self._loads)
        self._loads.clear()
        return loads

    def forget(self) -> None:
        """The runner's memory is lost; nothing runs."""
        assert not +self._users, f"adapters are in use: {+self._users}"
        self._free += [slot for slot, _ in self._slots.values()]
        self._slots.clear()

    def check(self, running: Counter[str]) -> None:
        """`running`: adapters of the running requests. Raises AssertionError."""
        assert +self._users == running, f"adapters of running requests are {running}, counted are {+self._users}"
        assert all(key in self._slots for key in running), "an adapter in use has no slot"
        taken = [slot for slot, _ in self._slots.values()]
        assert len({*taken, *self._free}) == len(taken) + len(self._free), "a slot has two adapters"
