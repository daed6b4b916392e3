"""The step runs on the runner's thread, in the order of the launches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from motet.core.params import RowSampling
from motet.core.plan import NewRow, RowPlan, StepPlan
from motet.core.result import RowResult, StepResult
from motet.core.state import StateGroup
from motet.engine.engine import Engine
from motet.runner.batch import PersistentBatch
from motet.runner.runner import NO_RUNNER, Runner
from motet.tensors.forward import ForwardBatch, ForwardOutput, StepRows
from tests.engine.driver import alone, answers, generate, greedy, make_engine, random_prompts


class NoAttention:
    def plan_step(self, rows: StepRows) -> None:
        return None

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("no layer here")


@dataclass
class GatedExecutor:
    """Runs when it is let; fails when told to."""

    gate: threading.Event = field(default_factory=threading.Event)
    ran: list[list[int]] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    error: BaseException | None = None

    def run(self, batch: ForwardBatch) -> ForwardOutput:
        assert self.gate.wait(timeout=20)
        if self.error is not None:
            raise self.error
        self.ran.append(batch.token_ids.tolist())
        self.threads.add(threading.current_thread().name)
        return ForwardOutput(torch.zeros(0, 0), torch.zeros(0, 0))


@dataclass
class CountingHead:
    """The next token is one more than the last."""

    batch: PersistentBatch

    def finish(self, plan: StepPlan, step: ForwardBatch, out: ForwardOutput) -> StepResult:
        results = []
        for row in plan.rows:
            stop = row.start + row.num_tokens
            token_id = int(self.batch.token_ids[row.row, stop - 1]) + 1
            self.batch.commit(row.row, stop, token_id)
            results.append(RowResult((token_id,)))
        return StepResult(plan.step, tuple(results))


ADMIT = NewRow(0, "r", [5], 1, RowSampling(temperature=0.0))


def plan(step: int) -> StepPlan:
    blocks = ((1, 2, 3, 4),) if step == 0 else ((),)
    return StepPlan(step, (RowPlan(0, "r", step, 1, True, blocks),), (ADMIT,) if step == 0 else ())


@pytest.fixture
def gated() -> Iterator[tuple[Runner, GatedExecutor]]:
    batch = PersistentBatch(2, 16, 50, (StateGroup(None, ("a",), 1),), 4)
    executor = GatedExecutor()
    runner = Runner(batch, NoAttention(), executor, CountingHead(batch), checks=True)
    yield runner, executor
    executor.gate.set()
    runner.close()


def test_launch_returns_before_the_forward_ends_and_steps_queue_up(gated: tuple[Runner, GatedExecutor]) -> None:
    runner, executor = gated
    tickets = [runner.launch(plan(step)) for step in range(3)]
    assert not any(ticket.future.done() for ticket in tickets)
    executor.gate.set()
    assert [ticket.wait().rows[0].token_ids for ticket in tickets] == [(6,), (7,), (8,)]
    # Step n + 1 was launched before the token of step n existed, and has read it.
    assert executor.ran == [[5], [6], [7]]
    assert len(executor.threads) == 1
    assert threading.current_thread().name not in executor.threads


def test_wait_raises_what_the_step_raised(gated: tuple[Runner, GatedExecutor]) -> None:
    runner, executor = gated
    executor.error = MemoryError("no room")
    executor.gate.set()
    with pytest.raises(MemoryError, match="no room"):
        runner.launch(plan(0)).wait()


def test_close_ends_the_thread_after_what_was_launched(gated: tuple[Runner, GatedExecutor]) -> None:
    runner, executor = gated
    before = set(threading.enumerate())
    ticket = runner.launch(plan(0))
    assert set(threading.enumerate()) - before
    executor.gate.set()
    runner.close()
    assert ticket.future.done()
    assert not set(threading.enumerate()) - before


def test_a_sleeping_engine_has_no_runner() -> None:
    with pytest.raises(RuntimeError, match="sleeps"):
        NO_RUNNER.launch(plan(0))
    NO_RUNNER.close()


@pytest.fixture(scope="module", params=["Llama", "Gemma3"])
def engine(request: pytest.FixtureRequest, tiny_checkpoints: Any) -> tuple[Engine, Path]:
    folder, _ = tiny_checkpoints(request.param)
    return make_engine(folder), folder


@pytest.mark.parametrize(("num_tokens", "num_rows"), [(1, 1), (64, 1), (16, 16), (37, 5), (128, 2)])
def test_a_dummy_plan_is_an_ordinary_step(engine: tuple[Engine, Path], num_tokens: int, num_rows: int) -> None:
    runner = engine[0].core.runner
    groups = engine[0].core.scheduler.stats.num_free_blocks
    dummy = StepPlan.dummy(num_tokens, 4, len(groups), num_rows)
    result = runner.launch(dummy).wait()
    assert len(result.rows) == num_rows
    for row in result.rows:
        assert row.error is None
        assert 0 <= row.token_ids[0] < 512
    assert runner.launch(StepPlan.free_rows(num_rows)).wait() == StepResult(-1)
    assert runner.batch.request_ids == [None] * 16  # type: ignore[attr-defined]


def test_dummy_plans_touch_no_block_that_a_request_could_hold(engine: tuple[Engine, Path]) -> None:
    _, folder = engine
    fresh = make_engine(folder)  # has run a dummy plan to warm up
    states = fresh.core.runner.executor.states  # type: ignore[attr-defined]
    for layer in ("model.layers.0.self_attn", "model.layers.1.self_attn"):
        assert states.paged(layer).k[:4].any()
        assert not states.paged(layer).k[4:].any()
    prompts = random_prompts((9, 20))
    expected = answers(generate(fresh, prompts, greedy()))
    fresh.core.runner.launch(StepPlan.dummy(30, 4, len(fresh.capacity.num_blocks), 2)).wait()
    fresh.core.runner.launch(StepPlan.free_rows(2)).wait()
    assert alone(fresh, prompts, greedy()) == expected
