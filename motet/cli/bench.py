"""`motet bench`: throughput, latency and startup, on prompts of random token ids."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motet.cli.engine import open_engine
from motet.cli.flags import Given, with_flags
from motet.cli.interrupts import interrupts_noted
from motet.cli.limits import Floor, Limits, find_floor, measure_limits, report
from motet.cli.options import ENGINE
from motet.cli.panels import PanelCommand
from motet.cli.startup import PHASES, measure
from motet.cli.terminal import note, print_fields
from motet.core.errors import InputError
from motet.core.params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from motet.engine.engine import Engine

PERCENTILES = (50, 90, 99)

bench_app: typer.Typer = typer.Typer(help="Measure speed.", no_args_is_help=True, rich_markup_mode=None)

InputLen = Annotated[int, typer.Option(min=1, help="Tokens per prompt.")]
OutputLen = Annotated[int, typer.Option(min=1, help="Tokens per answer; the end-of-text token does not end one.")]
NumIters = Annotated[int, typer.Option(min=1, help="Measured repetitions.")]
NumWarmup = Annotated[int, typer.Option("--num-iters-warmup", min=0, help="Repetitions before them, not measured.")]
Seed = Annotated[int, typer.Option(help="Of the random prompts.")]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the results here too; - is stdout.")
]


@dataclass(frozen=True)
class Pass:
    """What one batch of requests took: seconds in all, and to the first token of each request."""

    seconds: float
    first_token_s: list[float]


class Workload:
    """Batches of equal shape and different random prompts, so that no pass finds an earlier one in the prefix cache."""

    def __init__(self, engine: Engine, num_prompts: int, input_len: int, output_len: int, seed: int) -> None:
        if input_len + output_len > engine.facts.max_model_len:
            raise InputError(
                f"--input-len {input_len} and --output-len {output_len} make {input_len + output_len} tokens, but the "
                f"context length is {engine.facts.max_model_len}"
            )
        self._engine = engine
        self._shape = (num_prompts, input_len, output_len)
        self._random = random.Random(seed)
        self._params = SamplingParams(
            temperature=0,
            max_tokens=output_len,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def run(self) -> Pass:
        """Hand over one batch at once and wait for its last token. Raises InputError when a request failed."""
        engine, params = self._engine, self._params
        num_prompts, input_len, _ = self._shape
        vocab = range(engine.facts.vocab_size)
        prompts = [{"prompt_token_ids": self._random.choices(vocab, k=input_len)} for _ in range(num_prompts)]
        first: dict[str, float] = {}
        num_tokens = 0
        start = time.perf_counter()
        for prompt in prompts:
            engine.add(engine.parse(prompt, params), params)
        with interrupts_noted() as interrupts:
            while engine.has_work:
                for key, output in engine.step():
                    first.setdefault(key, time.perf_counter() - start)
                    num_tokens += len(output.outputs[0].token_ids)
                interrupts.check()
        seconds = time.perf_counter() - start
        if num_tokens != num_prompts * (params.max_tokens or 0):
            raise InputError(f"only {num_tokens} tokens came back: requests failed, and the figures would mean nothing")
        return Pass(seconds, list(first.values()))

    def limits(self) -> tuple[Limits, Floor]:
        """The machine's limits, measured now, and the seconds that a pass takes at least by them."""
        engine, scheduler = self._engine, self._engine.config.scheduler
        sizes = engine.weight_sizes
        is_quantized = sizes.bytes_per_value < 1.9
        limits = measure_limits("int8" if is_quantized else engine.dtype)
        most = (scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
        return limits, find_floor(limits, sizes, engine.groups, *self._shape, *most)


@bench_app.command("throughput", cls=PanelCommand)
@with_flags(engine=ENGINE)
def throughput(
    num_prompts: Annotated[int, typer.Option(min=1, help="Requests, all handed over at once.")] = 64,
    input_len: InputLen = 128,
    output_len: OutputLen = 128,
    num_iters: NumIters = 1,
    num_iters_warmup: NumWarmup = 0,
    seed: Seed = 0,
    json_file: JsonFile = None,
    *,
    engine: Given,
) -> None:
    """Tokens per second when many requests come at once. Of several repetitions, the median counts."""
    load = Workload(open_engine(engine), num_prompts, input_len, output_len, seed)
    passes = _repeat(load, num_iters, num_iters_warmup)
    seconds = statistics.median(one.seconds for one in passes)
    num_tokens = num_prompts * (input_len + output_len)
    limits, floor = load.limits()
    results = {
        "model": engine["model"],
        "num_requests": num_prompts,
        "input_len": input_len,
        "output_len": output_len,
        "elapsed_time": seconds,
        "elapsed_times": [one.seconds for one in passes],
        "total_num_tokens": num_tokens,
        "requests_per_second": num_prompts / seconds,
        "tokens_per_second": num_tokens / seconds,
        "output_tokens_per_second": num_prompts * output_len / seconds,
        "limits": report(limits, floor, seconds),
    }
    show(
        [
            ("requests", f"{num_prompts} of {input_len} + {output_len} tokens"),
            ("time", f"{seconds:.2f} s{_spread(passes)}"),
            ("requests/s", f"{num_prompts / seconds:.2f}"),
            ("tokens/s", f"{num_tokens / seconds:.1f} in all, {num_prompts * output_len / seconds:.1f} output"),
            ("share of the limit", f"{floor.total_s / seconds:.0%} of {limits}"),
        ],
        results,
        json_file,
    )


@bench_app.command("latency", cls=PanelCommand)
@with_flags(engine=ENGINE)
def latency(
    batch_size: Annotated[int, typer.Option(min=1, help="Requests per repetition, handed over at once.")] = 1,
    input_len: InputLen = 32,
    output_len: OutputLen = 128,
    num_iters: NumIters = 10,
    num_iters_warmup: NumWarmup = 2,
    seed: Seed = 0,
    json_file: JsonFile = None,
    *,
    engine: Given,
) -> None:
    """Seconds that one small batch takes, over many repetitions: mean and percentiles."""
    load = Workload(open_engine(engine), batch_size, input_len, output_len, seed)
    passes = _repeat(load, num_iters, num_iters_warmup)
    times = [one.seconds for one in passes]
    firsts = [first for one in passes for first in one.first_token_s]
    token_ms = [1e3 * (one.seconds - max(one.first_token_s)) / max(output_len - 1, 1) for one in passes]
    limits, floor = load.limits()
    decode_share = 1e3 * floor.decode_s / max(output_len - 1, 1) / (statistics.median(token_ms) or 1.0)
    results = {
        "model": engine["model"],
        "batch_size": batch_size,
        "input_len": input_len,
        "output_len": output_len,
        "avg_latency": statistics.fmean(times),
        "latencies": times,
        "percentiles": {str(p): percentile(times, p) for p in PERCENTILES},
        "first_token": {"mean": statistics.fmean(firsts), **{f"p{p}": percentile(firsts, p) for p in PERCENTILES}},
        "ms_per_output_token": statistics.median(token_ms),
        "limits": {**report(limits, floor, statistics.median(times)), "decode_share": decode_share},
    }
    show(
        [
            ("batch", f"{batch_size} x ({input_len} + {output_len}) tokens, {num_iters} times"),
            ("latency", _describe(times, "s", 3)),
            ("first token", _describe(firsts, "s", 3)),
            ("per output token", _describe(token_ms, "ms", 2) if output_len > 1 else "-"),
            (
                "share of the limit",
                f"{floor.total_s / statistics.median(times):.0%} of {limits}; per output token {decode_share:.0%}",
            ),
        ],
        results,
        json_file,
    )


@bench_app.command("startup", cls=PanelCommand)
@with_flags(engine=ENGINE)
def startup(
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What is asked.")] = "Why is the sky blue?",
    num_iters: NumIters = 3,
    num_iters_warmup: NumWarmup = 1,
    json_file: JsonFile = None,
    *,
    engine: Given,
) -> None:
    """Seconds from starting a process to its first token, in fresh processes, by phase."""
    for _ in range(num_iters_warmup):  # brings files into the page cache
        measure(engine, prompt)
    runs = [measure(engine, prompt) for _ in range(num_iters)]
    medians = {phase: statistics.median(run[phase] for run in runs) for phase in (*PHASES, "total")}
    rows = [(PHASES.get(phase, "first token after"), f"{seconds:6.3f} s") for phase, seconds in medians.items()]
    note(f"median of {num_iters}")
    show(rows, {"model": engine["model"], "median": medians, "runs": runs}, json_file)


def _repeat(load: Workload, num_iters: int, num_iters_warmup: int) -> list[Pass]:
    for _ in range(num_iters_warmup):
        load.run()
    return [load.run() for _ in range(num_iters)]


def percentile(values: Sequence[float], percent: float) -> float:
    """Between the two nearest values, linearly."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _describe(values: Sequence[float], unit: str, digits: int) -> str:
    shown = [f"mean {statistics.fmean(values):.{digits}f} {unit}"]
    return ", ".join(shown + [f"p{p} {percentile(values, p):.{digits}f}" for p in PERCENTILES])


def _spread(passes: list[Pass]) -> str:
    if len(passes) == 1:
        return ""
    times = [one.seconds for one in passes]
    return f" (median of {len(times)}; {min(times):.2f} to {max(times):.2f})"


def show(rows: list[tuple[str, str]], results: dict[str, Any], json_file: str | None) -> None:
    text = json.dumps(results, indent=1)
    if json_file == "-":
        print(text)
        return
    print_fields(rows)
    if json_file is not None:
        Path(json_file).write_text(text + "\n", encoding="utf-8")
