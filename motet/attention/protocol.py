"""What an attention backend offers to models and to the runner."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from motet.tensors.forward import StepRows
from motet.tensors.states import PagedState


class AttentionBackend(Protocol):
    def plan_step(self, rows: StepRows) -> Any:
        """Once per step and state group: everything that all layers of the group share."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PagedState,
        plan: Any,
        scale: float,
        soft_cap: float | None = None,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Store k and v [T, Hkv, D], then attend with q [T, Hq, D]; returns [T, Hq * D].

        The window belongs to the state group and is part of `plan`.
        """
