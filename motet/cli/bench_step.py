"""`motet bench step`: where the time of one step goes, part by part."""

from __future__ import annotations

import random
import statistics
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motet.cli.bench import InputLen, JsonFile, NumIters, NumWarmup, Seed, bench_app, show
from motet.cli.engine import open_engine
from motet.cli.flags import Given, with_flags
from motet.cli.options import ENGINE
from motet.cli.panels import PanelCommand
from motet.core.errors import InputError
from motet.core.params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from motet.core.plan import StepPlan
    from motet.engine.engine import Engine

PARTS = {
    "schedule": "choose rows, tokens and blocks",
    "gather": "update the persistent batch, build the forward's inputs",
    "run": "the forward",
    "sample": "logits to tokens",
    "commit": "advance the requests",
}


class StepClock:
    """Takes the engine's steps one by one on this thread and notes when each part ends."""

    def __init__(self, engine: Engine) -> None:
        self._scheduler = engine.core.scheduler
        self._runner: Any = engine.core.runner

    def step(self) -> tuple[StepPlan, list[float]]:
        """Run one step; its plan, and seconds of each of PARTS."""
        import torch

        runner, times = self._runner, [time.perf_counter()]
        with torch.inference_mode():
            plan = self._scheduler.schedule()
            times.append(time.perf_counter())
            runner.batch.apply(plan)
            batch = runner.batch.gather(plan, runner.attention)
            times.append(time.perf_counter())
            out = runner.executor.run(batch)
            times.append(time.perf_counter())
            result = runner.head.finish(plan, batch, out)
            times.append(time.perf_counter())
        self._scheduler.commit(plan, result)
        times.append(time.perf_counter())
        return plan, [end - start for start, end in pairwise(times)]


def measure_steps(engine: Engine, num_rows: int, input_len: int, num_steps: int, num_warmup: int) -> list[list[float]]:
    """Decode steps of `num_rows` requests behind random prompts of `input_len` tokens. Raises InputError."""
    limit = engine.facts.max_model_len
    if input_len + num_warmup + num_steps >= limit:
        raise InputError(
            f"--input-len {input_len} and {num_warmup + num_steps} steps do not fit the context length of {limit}"
        )
    params = SamplingParams(
        temperature=0,
        max_tokens=limit - input_len,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    for _ in range(num_rows):
        prompt = {"prompt_token_ids": random.choices(range(engine.facts.vocab_size), k=input_len)}
        engine.add(engine.parse(prompt, params), params)
    clock = StepClock(engine)
    plan, _ = clock.step()
    while len(plan.rows) < num_rows or any(row.num_tokens > 1 for row in plan.rows):
        plan, _ = clock.step()
    for _ in range(num_warmup):
        clock.step()
    return [clock.step()[1] for _ in range(num_steps)]


@bench_app.command("step", cls=PanelCommand)
@with_flags(engine=ENGINE)
def step(
    batch_size: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 1,
    input_len: InputLen = 32,
    num_iters: NumIters = 50,
    num_iters_warmup: NumWarmup = 5,
    seed: Seed = 0,
    json_file: JsonFile = None,
    *,
    engine: Given,
) -> None:
    """Microseconds that the parts of a decode step take: schedule, gather, run, sample, commit."""
    random.seed(seed)
    steps = measure_steps(open_engine(engine), batch_size, input_len, num_iters, num_iters_warmup)
    medians = {part: statistics.median(one[i] for one in steps) * 1e6 for i, part in enumerate(PARTS)}
    total = statistics.median(sum(one) for one in steps) * 1e6
    rows = [(part, f"{medians[part]:9.0f} us  {text}") for part, text in PARTS.items()]
    rows += [
        ("step", f"{total:9.0f} us  median of {num_iters}, one after the other"),
        ("host", f"{1 - medians['run'] / total:9.1%}     of the step, all parts but the forward"),
    ]
    results = {"model": engine["model"], "batch_size": batch_size, "input_len": input_len, "us": medians, "step": total}
    show(rows, results, json_file)
