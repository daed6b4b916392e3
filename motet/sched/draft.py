"""A step plan while it is being made, and after it was launched."""

from __future__ import annotations

from dataclasses import dataclass, field

from motet.core.plan import NewRow, RowPlan, StepPlan
from motet.core.request import Request


@dataclass
class Draft:
    """What the step computes so far. `budget`: tokens that it can still take."""

    budget: int
    rows: dict[Request, RowPlan] = field(default_factory=dict)
    admits: list[NewRow] = field(default_factory=list)
    has_preempted: bool = False

    def add(self, request: Request, row: RowPlan) -> None:
        self.rows[request] = row
        self.budget -= row.num_tokens

    def drop(self, request: Request) -> RowPlan | None:
        row = self.rows.pop(request, None)
        self.budget += row.num_tokens if row else 0
        return row


@dataclass(frozen=True)
class LaunchedStep:
    """Requests by identity: an id may be finished, and even used again, before the step is committed."""

    plan: StepPlan
    requests: tuple[Request, ...]  # requests[i] belongs to plan.rows[i]
