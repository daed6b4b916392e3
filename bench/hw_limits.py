"""What this machine can do, as seen through torch: memory rate, matrix products, the cost of a call.

    python bench/hw_limits.py [--threads 2] [--only memory,product,linear,call] [--json FILE]

Each figure is the best of several timed repetitions; medians are in the JSON. A step of an engine cannot be faster than
the larger of (bytes of weights and KV read) / (memory rate) and (operations) / (rate of their precision).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

GIB = 2**30
# (rows, columns) = (out, in) of the linear layers of models that are measured.
SHAPES = {
    "SmolLM2 qkv, o": (576, 576),
    "SmolLM2 gate, up": (1536, 576),
    "SmolLM2 down": (576, 1536),
    "SmolLM2 head": (49152, 576),
    "Qwen3-0.6B qkv": (4096, 1024),
    "Qwen3-0.6B gate, up": (3072, 1024),
    "Qwen3-0.6B head": (151936, 1024),
}


def time_calls(call: Callable[[], object], min_s: float = 0.15, reps: int = 5) -> tuple[float, float]:
    """Seconds per call: the best and the median of `reps` batches, each at least `min_s` long."""
    call()
    call()
    start = time.perf_counter()
    call()
    num_calls = max(1, int(min_s / max(time.perf_counter() - start, 1e-7)))
    times = []
    for _ in range(reps):
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        times.append((time.perf_counter() - start) / num_calls)
    times.sort()
    return times[0], times[reps // 2]


class Limits:
    """Results by name, printed as they come."""

    def __init__(self) -> None:
        self.results: dict[str, dict[str, float]] = {}

    def add(self, name: str, seconds: tuple[float, float], **work: float) -> None:
        """`work`: what one call does, by the unit of its rate in 1e9 per second."""
        best, median = seconds
        rates = {unit: amount / best / 1e9 for unit, amount in work.items()}
        self.results[name] = {"best_us": best * 1e6, "median_us": median * 1e6, **rates}
        shown = "  ".join(f"{rate:9.2f} {unit}" for unit, rate in rates.items())
        print(f"{name:46s} {best * 1e6:12.1f} us  {shown}", flush=True)


def memory(limits: Limits) -> None:
    copies(limits)
    weight = torch.randn(GIB // 16384, 8192).to(torch.bfloat16)
    for num_rows in (1, 4):
        x = torch.randn(num_rows, 8192).to(torch.bfloat16)
        seconds = time_calls(lambda x=x: F.linear(x, weight), reps=3)
        limits.add(f"linear bf16 1 GiB of weights, {num_rows} rows", seconds, GB=weight.nbytes)


def copies(limits: Limits) -> None:
    source = torch.ones(GIB // 4)
    target = torch.empty_like(source)
    limits.add("read: sum of 1 GiB fp32", time_calls(lambda: source.sum()), GB=source.nbytes)
    limits.add("copy 1 GiB fp32 (read and written)", time_calls(lambda: target.copy_(source)), GB=2 * source.nbytes)


def product(limits: Limits) -> None:
    size = 2048
    for dtype in (torch.bfloat16, torch.float32):
        for num_rows in (1, 2, 4, 8, 16, 32, 64, 128, 512, 2048):
            a, b = torch.randn(num_rows, size).to(dtype), torch.randn(size, size).to(dtype)
            seconds = time_calls(lambda a=a, b=b: torch.mm(a, b))
            name = f"product {str(dtype)[6:]} {num_rows} x {size} x {size}"
            limits.add(name, seconds, GFLOP=2 * num_rows * size * size)
    for num_rows in (32, 64, 512, 2048):
        a8 = torch.randint(-127, 127, (num_rows, size), dtype=torch.int8)
        b8 = torch.randint(-127, 127, (size, size), dtype=torch.int8)
        seconds = time_calls(lambda a8=a8, b8=b8: torch._int_mm(a8, b8))
        limits.add(f"product int8 {num_rows} x {size} x {size}", seconds, GOP=2 * num_rows * size * size)


def linear(limits: Limits) -> None:
    for name, (rows, columns) in SHAPES.items():
        # Copies by turns, so that small weights are not timed from the cache.
        copies = max(1, min(200, int(96e6 / (rows * columns * 2))))
        weights = [torch.randn(rows, columns).to(torch.bfloat16) for _ in range(copies)]
        for num_rows in (1, 4, 16, 64, 256):
            x = torch.randn(num_rows, columns).to(torch.bfloat16)
            best, median = time_calls(
                lambda x=x, weights=weights: [F.linear(x, weight) for weight in weights],
                min_s=0.1,
                reps=3,
            )
            work = {"GB": rows * columns * 2, "GFLOP": 2 * num_rows * rows * columns}
            limits.add(f"linear bf16 {name}, {num_rows} rows", (best / copies, median / copies), **work)


def call(limits: Limits) -> None:
    small, row = torch.ones(8), torch.ones(1, 64, dtype=torch.bfloat16)
    weight = torch.ones(64, 64, dtype=torch.bfloat16)
    parallel = torch.ones(1, 65536)
    limits.add("tiny: add", time_calls(lambda: small.add(1), reps=7))
    limits.add("tiny: view", time_calls(lambda: small.view(2, 4), reps=7))
    limits.add("tiny: rms_norm of 64", time_calls(lambda: F.rms_norm(row, (64,)), reps=7))
    limits.add("tiny: linear 64 x 64", time_calls(lambda: F.linear(row, weight), reps=7))
    limits.add("add to 65536 fp32, which forks threads", time_calls(lambda: parallel.add(1), reps=7))


PARTS = {"memory": memory, "product": product, "linear": linear, "call": call}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the machine's limits through torch.")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    limits = Limits()
    with torch.inference_mode():
        for part in args.only.split(","):
            PARTS[part](limits)
    if args.json:
        Path(args.json).write_text(json.dumps(limits.results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
