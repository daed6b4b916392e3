"""Overlap, and what happens when a step fails, is interrupted, or brings a row that is not a number."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from motet.core.errors import EngineDeadError
from motet.core.params import SamplingParams
from motet.core.plan import StepPlan
from motet.engine.engine import Engine
from motet.runner.runner import Ticket
from motet.tensors.forward import ForwardBatch, ForwardOutput
from motet.tensors.states import StateStore
from tests.engine.driver import (
    alone,
    answers,
    assert_idle,
    generate,
    greedy,
    make_engine,
    model_of,
    only,
    random_prompts,
    run,
)

PROMPTS = random_prompts((9, 3, 20))


@pytest.fixture
def folder(tiny_checkpoints: Any) -> Path:
    folder: Path = tiny_checkpoints("Llama")[0]
    return folder


class WatchedRunner:
    """Notes when steps are launched and when they end. The first step does not end before `others` more are queued."""

    def __init__(self, engine: Engine, others: int) -> None:
        self.events: list[tuple[str, int]] = []
        self._inner, self._others = engine.core.runner, others
        self._is_enough = threading.Event()
        self._executor = self._inner.executor  # type: ignore[attr-defined]
        self._inner.executor = self  # type: ignore[attr-defined]
        self._num_ended = 0
        engine.core.runner = self

    def launch(self, plan: StepPlan) -> Ticket:
        self.events.append(("launch", plan.step))
        if len(self.events) > self._others:
            self._is_enough.set()
        return self._inner.launch(plan)

    def run(self, batch: ForwardBatch) -> ForwardOutput:
        assert self._is_enough.wait(timeout=20), "the next step was not queued while this one ran"
        out: ForwardOutput = self._executor.run(batch)
        self.events.append(("end", self._num_ended))
        self._num_ended += 1
        return out

    def close(self) -> None:
        self._inner.close()


def test_the_next_step_is_planned_and_queued_while_one_runs(folder: Path) -> None:
    expected = alone(make_engine(folder), PROMPTS, greedy())
    engine = make_engine(folder)
    runner = WatchedRunner(engine, others=1)
    keys = [engine.add(engine.parse(prompt, greedy()), greedy()) for prompt in PROMPTS]
    assert engine.step() == []  # launched, and back before the forward has ended
    assert runner.events == [("launch", 0)]
    done = run(engine)
    assert [only(done[key]).token_ids for key in keys] == expected
    assert runner.events[:3] == [("launch", 0), ("launch", 1), ("end", 0)]
    for step in range(2, 10):
        assert runner.events.index(("launch", step)) > runner.events.index(("end", step - 2))


def test_without_overlap_a_step_ends_before_the_next_is_planned(folder: Path) -> None:
    engine = make_engine(folder, async_scheduling=False)
    runner = WatchedRunner(engine, others=0)
    generate(engine, PROMPTS, greedy())
    kinds = [kind for kind, _ in runner.events]
    assert kinds == ["launch", "end"] * (len(kinds) // 2)


def test_at_most_two_steps_are_under_way(folder: Path) -> None:
    engine = make_engine(folder)
    keys = [engine.add(engine.parse(prompt, greedy()), greedy()) for prompt in PROMPTS]
    while engine.has_work:
        engine.step()
        assert len(engine.core._launched) <= 1  # one runs while its outputs are worked on
    assert keys


# Failure --------------------------------------------------------------------------------------------------------------


class FailingExecutor:
    def __init__(self, engine: Engine, after: int, error: BaseException) -> None:
        self.runner: Any = engine.core.runner
        self.inner, self.left, self.error = self.runner.executor, after, error
        self.runner.executor = self

    def run(self, batch: ForwardBatch) -> ForwardOutput:
        if self.left == 0:
            raise self.error
        self.left -= 1
        out: ForwardOutput = self.inner.run(batch)
        return out


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_step_that_raises_ends_the_engine(folder: Path, after: int, is_async: bool) -> None:
    threads = threading.enumerate()
    engine = make_engine(folder, async_scheduling=is_async)
    FailingExecutor(engine, after, ZeroDivisionError("broken"))
    for prompt in PROMPTS:
        engine.add(engine.parse(prompt, greedy()), greedy())
    with pytest.raises(EngineDeadError, match=r"ZeroDivisionError: broken") as caught:
        run(engine)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    for again in (engine.step, lambda: engine.add(engine.parse([1], greedy()), greedy())):
        with pytest.raises(EngineDeadError, match=r"ZeroDivisionError: broken"):
            again()
    engine.close()
    assert set(threading.enumerate()) <= set(threads)


@pytest.mark.parametrize("verb", ["schedule", "commit"])
def test_so_does_a_broken_scheduler(folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    engine = make_engine(folder)
    engine.add(engine.parse([1, 2], greedy()), greedy())
    engine.step()

    def broken(*args: Any) -> None:
        raise AssertionError("lost count")

    monkeypatch.setattr(engine.core.scheduler, verb, broken)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="lost count"):
            engine.step()


def test_after_close_the_engine_says_so(folder: Path) -> None:
    engine = make_engine(folder)
    engine.close()
    engine.close()
    with pytest.raises(EngineDeadError, match="shut down"):
        engine.add(engine.parse([1], greedy()), greedy())
    with pytest.raises(EngineDeadError, match="shut down"):
        engine.step()


# Ctrl-C ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
def test_an_interrupted_wait_is_taken_up_again(folder: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    engine = make_engine(folder, async_scheduling=is_async)
    expected = alone(engine, PROMPTS, greedy())
    wait, num_calls = Ticket.wait, 0

    def interrupted(ticket: Ticket) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 3 == 1:
            raise KeyboardInterrupt
        return wait(ticket)

    monkeypatch.setattr(Ticket, "wait", interrupted)
    keys = [engine.add(engine.parse(prompt, greedy()), greedy()) for prompt in PROMPTS]
    done, num_interrupts = {}, 0
    while engine.has_work:
        try:
            done.update(engine.step())
        except KeyboardInterrupt:
            num_interrupts += 1
        engine.check()
    assert_idle(engine)
    assert num_interrupts > 3
    assert [only(done[key]).token_ids for key in keys] == expected


def test_a_real_ctrl_c_ends_the_wait_and_not_the_engine(folder: Path) -> None:
    engine = make_engine(folder)
    expected = alone(engine, PROMPTS, greedy())
    runner: Any = engine.core.runner
    inner, batches = runner.executor, []

    class Interrupting:
        def run(self, batch: ForwardBatch) -> ForwardOutput:
            batches.append(batch)
            if len(batches) == 3:
                time.sleep(0.4)  # by now the main thread waits for this step
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            out: ForwardOutput = inner.run(batch)
            return out

    runner.executor = Interrupting()
    keys = [engine.add(engine.parse(prompt, greedy()), greedy()) for prompt in PROMPTS]
    with pytest.raises(KeyboardInterrupt):
        run(engine)
    done = run(engine)
    assert [only(done[key]).token_ids for key in keys] == expected


@pytest.mark.parametrize("verb", ["schedule", "commit"])
def test_an_interrupt_in_the_middle_of_planning_ends_the_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    engine = make_engine(folder)
    engine.add(engine.parse([1, 2], greedy()), greedy())
    engine.step()

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.core.scheduler, verb, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    with pytest.raises(EngineDeadError, match="KeyboardInterrupt"):
        engine.step()


# Rows that are not numbers --------------------------------------------------------------------------------------------

POISON = 300


class Poisoned:
    """A model for which one token is poison: `logits` after it are `value`, or its whole embedding is NaN."""

    ignored_tensors = ()

    def __init__(self, inner: Any, value: float | None) -> None:
        self.inner, self.value = inner, value
        self.embed_batch = inner.embed_batch
        self.is_poison = torch.zeros(0, dtype=torch.bool)

    def forward(self, batch: ForwardBatch, states: StateStore) -> Tensor:
        self.is_poison = batch.token_ids == POISON
        self.inner.embed_batch = self.embed if self.value is None else self.embed_batch
        hidden: Tensor = self.inner.forward(batch, states)
        self.inner.embed_batch = self.embed_batch
        return hidden

    def embed(self, batch: ForwardBatch) -> Tensor:
        embedded: Tensor = self.embed_batch(batch).clone()
        embedded[self.is_poison] = torch.nan
        return embedded

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        out: Tensor = self.inner.logits(hidden, rows)
        if self.value is not None:
            out[self.is_poison[rows], 7] = self.value
        return out


@pytest.mark.parametrize("params", [greedy(), SamplingParams(temperature=1.0, seed=1, ignore_eos=True, logprobs=1)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_a_row_that_is_not_a_number_ends_alone(
    tiny_checkpoints: Any, family: str, value: float | None, params: SamplingParams
) -> None:
    folder, _ = tiny_checkpoints(family)
    engine = make_engine(folder, num_blocks_override=60)
    mates = [params.clone(logit_bias={POISON: -100.0}) for _ in PROMPTS]
    expected = answers(generate(engine, PROMPTS, mates))
    assert engine.reset_prefix_cache()
    bad = [[*random_prompts([13], vocab_size=POISON, seed=5)[0], POISON], [POISON]]
    runner: Any = engine.core.runner
    with model_of(engine, Poisoned(runner.head.model, value)):
        outputs = generate(engine, [bad[0], *PROMPTS, bad[1]], [params, *mates, params])
        for failed in (only(outputs[0]), only(outputs[-1])):
            assert (failed.token_ids, failed.finish_reason) == ([], "error")
            assert "not finite" in str(failed.stop_reason)
        assert answers(outputs[1:-1]) == expected
        # What it left behind is not found again, and its blocks do no harm to those who get them.
        again = generate(engine, [bad[0], *PROMPTS], [params, *mates])
        assert again[0].num_cached_tokens == 0
        assert answers(again[1:]) == expected
    many = random_prompts([30] * 7, seed=9)
    fresh = make_engine(folder)
    assert answers(generate(engine, many, greedy())) == answers(generate(fresh, many, greedy()))
