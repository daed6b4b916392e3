"""Times paged attention, kernel against reference, with SmolLM2's heads in bfloat16.

    python bench/attention.py

prefill: one row of 1024 tokens, in GFLOP/s of what is visible (2 products of 2 D operations per query and key).
decode: 64 rows of one token that each look at 256 keys, in GB/s of K and V.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from motet.attention.cpu import CpuPagedAttention
from motet.attention.paged import PagedAttention
from motet.attention.protocol import AttentionBackend
from motet.ops.cpu import isa
from motet.tensors.forward import StepLayout, StepRows
from motet.tensors.states import PagedState

NUM_LAYERS = 12  # each with a cache of its own, as in a model: what one call reads has left the processor's caches
NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 9, 3, 64, 16


def best_seconds(call: Callable[[], object]) -> float:
    times = []
    end = time.perf_counter() + 1.5
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure(name: str, num_rows: int, start: int, num_tokens: int) -> None:
    num_blocks = -(-(start + num_tokens) // BLOCK_SIZE)
    table = torch.randperm(num_rows * num_blocks, dtype=torch.int32).view(num_rows, num_blocks) + 1
    rows = StepRows(StepLayout.of([start] * num_rows, [num_tokens] * num_rows), table.numpy(), BLOCK_SIZE, None)

    def values(*shape: int) -> Tensor:
        return torch.randn(*shape, HEAD_SIZE).bfloat16()

    tokens = num_rows * num_tokens
    q, k, v = values(tokens, NUM_HEADS), values(tokens, NUM_KV_HEADS), values(tokens, NUM_KV_HEADS)
    num_slots = (num_rows * num_blocks + 1) * BLOCK_SIZE
    layers = itertools.cycle(
        PagedState(values(num_slots, NUM_KV_HEADS), values(num_slots, NUM_KV_HEADS), 0) for _ in range(NUM_LAYERS)
    )
    num_pairs = num_rows * sum(range(start + 1, start + num_tokens + 1))
    num_operations = num_pairs * NUM_HEADS * HEAD_SIZE * 4
    num_bytes = num_rows * (start + num_tokens) * NUM_KV_HEADS * HEAD_SIZE * 4
    backends: dict[str, AttentionBackend] = {"kernel": CpuPagedAttention(), "reference": PagedAttention()}
    for label, backend in backends.items():
        plan_seconds = best_seconds(lambda backend=backend: backend.plan_step(rows))
        plan = backend.plan_step(rows)
        seconds = best_seconds(lambda backend=backend, plan=plan: backend.attend(q, k, v, next(layers), plan, 0.125))
        print(
            f"{name:<16}{label:<10}{seconds * 1e3:9.3f} ms{num_operations / seconds / 1e9:8.1f} GFLOP/s"
            f"{num_bytes / seconds / 1e9:8.1f} GB/s   plan {plan_seconds * 1e6:7.0f} us"
        )


def main() -> None:
    print(f"kernels: {isa()}, threads: {torch.get_num_threads()}")
    measure("prefill 1024", 1, 0, 1024)
    measure("decode 64 x 256", 64, 255, 1)
    measure("decode 1 x 2048", 1, 2047, 1)


if __name__ == "__main__":
    main()
