"""The engine's inner loop: schedule, launch, wait, commit."""

from __future__ import annotations

from collections import deque

from motet.core.errors import EngineDeadError
from motet.core.plan import StepPlan
from motet.core.request import Request
from motet.core.result import Delta
from motet.runner.runner import StepRunner, Ticket
from motet.sched.scheduler import Scheduler


class EngineCore:
    """Knows requests and tokens, no text. With `overlap`, step n + 1 is planned and queued while step n runs.

    Not thread-safe: one thread calls it.
    """

    def __init__(self, scheduler: Scheduler, runner: StepRunner, overlap: bool) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self._depth = 2 if overlap else 1
        self._launched: deque[tuple[StepPlan, Ticket]] = deque()
        self._death: BaseException | None = None

    def add(self, request: Request) -> None:
        self._check_alive()
        self.scheduler.add(request)

    @property
    def has_work(self) -> bool:
        return bool(self._launched) or self.scheduler.has_work

    def step(self) -> list[Delta]:
        """Plan one step, and commit the oldest launched one once enough are under way. Raises EngineDeadError."""
        self._check_alive()
        plan = self.scheduler.schedule()
        if not plan.is_empty:
            self._launched.append((plan, self.runner.launch(plan)))
        if not self._launched or (not plan.is_empty and len(self._launched) < self._depth):
            return []
        plan, ticket = self._launched.popleft()
        try:
            result = ticket.wait()
        except BaseException as error:
            self._death = error
            raise EngineDeadError(f"step {plan.step} failed: {type(error).__name__}: {error}") from error
        return self.scheduler.commit(plan, result)

    def drain(self) -> list[Delta]:
        """Commit every launched step without planning new ones."""
        deltas: list[Delta] = []
        while self._launched:
            plan, ticket = self._launched.popleft()
            deltas += self.scheduler.commit(plan, ticket.wait())
        return deltas

    def close(self) -> None:
        self.runner.close()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(f"the engine stopped after an error: {self._death}") from self._death
