"""The engine's inner loop: schedule, launch, wait, commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from motet.core.errors import EngineDeadError
from motet.core.plan import StepPlan
from motet.core.request import Request
from motet.core.result import Delta
from motet.runner.runner import StepRunner, Ticket
from motet.sched.scheduler import Scheduler


class EngineCore:
    """Knows requests and tokens, no text. With `overlap`, step n + 1 is planned and queued while step n runs.

    Not thread-safe: one thread calls it. Whatever a step raises ends the core for good. Ctrl-C does so only while a
    plan is made or committed; it ends the waiting for a step, not the step, and the next call waits for it again.
    """

    def __init__(self, scheduler: Scheduler, runner: StepRunner, overlap: bool) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self._depth = 2 if overlap else 1
        self._launched: deque[tuple[StepPlan, Ticket]] = deque()
        self._death: EngineDeadError | None = None

    def add(self, request: Request) -> None:
        self._check_alive()
        self.scheduler.add(request)

    @property
    def has_work(self) -> bool:
        return bool(self._launched) or self.scheduler.has_work

    def step(self) -> list[Delta]:
        """Plan one step, and commit the oldest launched one once enough are under way. Raises EngineDeadError."""
        self._check_alive()
        with self._or_die(BaseException):
            if self._plan_ahead():
                return []
        with self._or_die(Exception):
            plan, ticket = self._launched[0]
            result = ticket.wait()
        with self._or_die(BaseException):
            self._launched.popleft()
            return self.scheduler.commit(plan, result)

    def _plan_ahead(self) -> bool:
        """Launch one more plan, if there is something to do. Whether it is too early to wait for the oldest one."""
        if len(self._launched) == self._depth:  # the last wait was broken off
            return False
        plan = self.scheduler.schedule()
        if plan.is_empty:
            return not self._launched
        self._launched.append((plan, self.runner.launch(plan)))
        return len(self._launched) < self._depth

    def close(self) -> None:
        """Nothing can be served any more."""
        self._death = self._death or EngineDeadError("the engine was shut down")
        self.runner.close()

    @contextmanager
    def _or_die(self, fatal: type[BaseException]) -> Iterator[None]:
        try:
            yield
        except fatal as error:
            self._death = EngineDeadError(f"the engine stopped after an error: {type(error).__name__}: {error}")
            if not isinstance(error, Exception):  # Ctrl-C stays Ctrl-C
                raise
            raise self._death from error

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death.__cause__
