"""Who is served first: the order of the waiting queue and the choice of the request that gives way.

A policy is chosen once, by name, from POLICIES.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Protocol

from motet.core.request import Request

Running = dict[Request, None]  # an ordered set: requests that have a row, in order of admission
Urgency = tuple[int, float, int]


def urgency(request: Request) -> Urgency:
    """Smaller is served earlier; no two requests are equal."""
    return (request.priority, request.arrival, request.sequence)


class WaitingQueue(Protocol):
    def push(self, request: Request) -> None:
        """A new request."""

    def put_back(self, request: Request) -> None:
        """A preempted request; it keeps its turn."""

    def peek(self) -> Request: ...

    def remove(self, request: Request) -> None: ...

    def victim(self, running: Running) -> Request:
        """The running request that loses its row when blocks run out."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FirstComeQueue:
    """First come, first served. A preempted request returns to the front; the victim is the last one admitted."""

    def __init__(self) -> None:
        self._requests: OrderedDict[Request, None] = OrderedDict()

    def push(self, request: Request) -> None:
        self._requests[request] = None

    def put_back(self, request: Request) -> None:
        self._requests[request] = None
        self._requests.move_to_end(request, last=False)

    def peek(self) -> Request:
        return next(iter(self._requests))

    def remove(self, request: Request) -> None:
        del self._requests[request]

    def victim(self, running: Running) -> Request:
        return next(reversed(running))

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityQueue:
    """By (priority, arrival), smallest first; the victim is the largest.

    A sorted list rather than a heap: an abort removes from the middle, and moving pointers is cheap.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Urgency, Request]] = []

    def push(self, request: Request) -> None:
        insort(self._entries, (urgency(request), request), key=itemgetter(0))

    put_back = push

    def peek(self) -> Request:
        return self._entries[0][1]

    def remove(self, request: Request) -> None:
        _, removed = self._entries.pop(bisect_left(self._entries, urgency(request), key=itemgetter(0)))
        assert removed is request, f"request {request.request_id!r} is not waiting"

    def victim(self, running: Running) -> Request:
        return max(running, key=urgency)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._entries)


POLICIES: dict[str, Callable[[], WaitingQueue]] = {"fcfs": FirstComeQueue, "priority": PriorityQueue}
