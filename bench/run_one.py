"""Measures one engine on one model, in this process. Run by compare.py, or by hand:

    python bench/run_one.py --adapter NAME --model DIR_OR_FILE [--opt k=v ...] [--cases decode,prefill] [--reps 3]

An adapter is a module adapters/NAME.py with a class Engine:

    Engine(model, **opts)                       loads; may start a server
    prepare(case)                               untimed: make room for this case's requests
    generate(prompts, new_len) -> [[int]]       exactly `new_len` greedy tokens per prompt, EOS ignored
    close()
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Protocol

START = float(os.environ.get("BENCH_T0", time.time()))
sys.path.insert(0, str(Path(__file__).parent))

from workloads import CASES, Case  # noqa: E402


class Engine(Protocol):
    def prepare(self, case: Case) -> None: ...

    def generate(self, prompts: list[list[int]], new_len: int) -> list[list[int]]: ...

    def close(self) -> None: ...


def measure(engine: Engine, case: Case, num_reps: int, budget_s: float, seed: int) -> dict[str, Any]:
    """Seconds of each repetition, their median, the rate, and the first tokens (to compare engines)."""
    engine.prepare(case)
    warm = case.warm_up()
    engine.generate(warm.prompts(999, seed), warm.new_len)
    times: list[float] = []
    head: list[int] = []
    for repetition in range(num_reps):
        if sum(times) > budget_s:
            break
        prompts = case.prompts(repetition, seed)
        start = time.perf_counter()
        answers = engine.generate(prompts, case.new_len)
        times.append(time.perf_counter() - start)
        wrong = [len(answer) for answer in answers if len(answer) != case.new_len]
        if len(answers) != case.num_requests or wrong:
            raise RuntimeError(f"{len(answers)} answers, of them of wrong length: {wrong[:5]}")
        head = head or answers[0][:8]
    median = statistics.median(times)
    return {
        "seconds": times,
        "median_s": median,
        "rate": case.rate(median),
        "spread": (max(times) - min(times)) / median,
        "first_tokens": head,
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    options = dict(option.split("=", 1) for option in args.opt)
    results: dict[str, Any] = {"adapter": args.adapter, "opts": options, "cases": {}}
    engine: Engine = importlib.import_module(f"adapters.{args.adapter}").Engine(args.model, **options)
    first = Case("first", "", 1, 0, 32, 1)
    engine.prepare(first)
    results["load_s"] = time.time() - START
    engine.generate(first.prompts(0), 1)
    results["first_token_s"] = time.time() - START
    print(f"first token after {results['first_token_s']:.2f} s", flush=True)
    for name in filter(None, args.cases.split(",")):
        try:
            found = measure(engine, CASES[name], args.reps, args.budget_s, args.seed)
        except Exception as error:  # the other cases are still worth having
            found = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            print(name, "FAILED", found["error"], flush=True)
        else:
            print(
                f"{name:9s} median {found['median_s']:8.3f} s  {found['rate']:9.1f} tok/s  "
                f"spread {found['spread'] * 100:4.1f} %  first tokens {found['first_tokens']}",
                flush=True,
            )
        results["cases"][name] = found
    engine.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one engine on one model.")
    parser.add_argument("--adapter", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--opt", action="append", default=[], metavar="K=V")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=60, help="start no further repetition after this long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE")
    args = parser.parse_args()
    results = run(args)
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
