"""The step: from a plan to its result."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch

from motet.attention.protocol import AttentionBackend
from motet.core.plan import AdapterLoad, StepPlan
from motet.core.result import StepResult
from motet.runner.batch import PersistentBatch
from motet.runner.executor import Executor
from motet.tensors.forward import ForwardBatch, ForwardOutput


class Head(Protocol):
    """Turns the forward's output into results, one per row of the plan."""

    def finish(self, plan: StepPlan, step: ForwardBatch, out: ForwardOutput) -> StepResult: ...


class AdapterLoader(Protocol):
    """Fills the slots that the model reads."""

    def apply(self, loads: Sequence[AdapterLoad]) -> None: ...


class NoAdapterLoader:
    """There are no slots, and no plan asks for any."""

    def apply(self, loads: Sequence[AdapterLoad]) -> None:
        pass


NO_ADAPTER_LOADER = NoAdapterLoader()


@dataclass(frozen=True)
class Ticket:
    """A launched step."""

    future: Future[StepResult]

    def wait(self) -> StepResult:
        """Block until the step has run. Raises whatever the step raised."""
        return self.future.result()


class StepRunner(Protocol):
    """What the engine needs of a runner."""

    def launch(self, plan: StepPlan) -> Ticket: ...

    def close(self) -> None: ...


class Runner:
    """Runs launched plans one after another on a thread of its own."""

    def __init__(
        self,
        batch: PersistentBatch,
        attention: AttentionBackend,
        executor: Executor,
        head: Head,
        checks: bool = False,
        adapters: AdapterLoader = NO_ADAPTER_LOADER,
    ) -> None:
        self.batch = batch
        self.attention = attention
        self.executor = executor
        self.head = head
        self.adapters = adapters
        self._check = batch.check if checks else lambda plan: None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="motet-runner")

    def launch(self, plan: StepPlan) -> Ticket:
        """Queue the step and return at once."""
        return Ticket(self._thread.submit(self._run, plan))

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> StepResult:
        self.adapters.apply(plan.loads)
        self.batch.apply(plan)
        self._check(plan)
        step = self.batch.gather(plan, self.attention)
        out = self.executor.run(step)
        return self.head.finish(plan, step, out)

    def warm_up(self, num_tokens: int) -> None:
        """Run a plan that nobody owns, through the same step."""
        block_size, num_groups = self.batch.block_size, len(self.batch.groups)
        self.launch(StepPlan.dummy(num_tokens, block_size, num_groups)).wait()
        self.launch(StepPlan.free_rows(1)).wait()

    def close(self) -> None:
        self._thread.shutdown(wait=True)


class NoRunner:
    """Stands in for a runner whose memory was given back."""

    def launch(self, plan: StepPlan) -> Ticket:
        raise RuntimeError("there is no runner: the engine sleeps")

    def close(self) -> None:
        pass


NO_RUNNER = NoRunner()
