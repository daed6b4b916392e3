"""How near to the machine's limits a benchmark came.

A step cannot be faster than the larger of (bytes of weights and KV that it reads) / (rate of memory) and (operations) /
(rate of matrix products in the weights' precision). Both rates are measured in the process that ran the benchmark, for
memory rates differ from one process to the next. Only products with weights are counted, not those of attention, and no
KV in the prefill: the floor is a little too low, and so is the share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motet.core.state import StateGroup
    from motet.models.loader import WeightSizes

MEASURE_S = 0.3
NUM_READ_BYTES = 1 << 28  # beyond any cache
PRODUCT_SIZE = 1024


@dataclass(frozen=True)
class Limits:
    """bytes_per_s: of reading memory; ops_per_s: multiplications and additions of products in `precision`."""

    precision: str
    bytes_per_s: float
    ops_per_s: float

    def __str__(self) -> str:
        unit = "GOP/s" if self.precision == "int8" else "GFLOP/s"
        return f"{self.bytes_per_s / 1e9:.1f} GB/s, {self.ops_per_s / 1e9:.0f} {unit} in {self.precision}"


def measure_limits(precision: str) -> Limits:
    """Of this process, with torch's threads: the best of repetitions in a few tenths of a second.

    precision: float32, bfloat16, float16 (which multiplies as float32 where that is faster) or int8.
    """
    import torch

    with torch.inference_mode():
        source = torch.ones(NUM_READ_BYTES // 4)
        read_s = _best(source.sum)
        n = PRODUCT_SIZE
        if precision == "int8":
            a, b = (torch.randint(-127, 127, (n, n), dtype=torch.int8) for _ in range(2))
            product_s = _best(lambda: torch._int_mm(a, b))
        else:
            names = {precision, "float32"} if precision == "float16" else {precision}
            pairs = [torch.randn(2, n, n).to(getattr(torch, name)) for name in names]
            product_s = min(_best(lambda pair=pair: torch.mm(pair[0], pair[1])) for pair in pairs)
    return Limits(precision, source.nbytes / read_s, 2 * n**3 / product_s)


def _best(call: Callable[..., object]) -> float:
    """Seconds of the fastest call."""
    call()
    times: list[float] = []
    while sum(times) < MEASURE_S:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


@dataclass(frozen=True)
class Floor:
    """Seconds that a batch takes at least: its prompts, with each request's first token, and the tokens after them."""

    prefill_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        return self.prefill_s + self.decode_s


def find_floor(
    limits: Limits,
    sizes: WeightSizes,
    groups: tuple[StateGroup, ...],
    num_requests: int,
    input_len: int,
    output_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> Floor:
    """Of `num_requests` of one shape that come at once: prompts in full chunks, then as many rows as may run."""

    def step_s(num_tokens: float, num_heads: float, num_kv_bytes: float = 0) -> float:
        num_bytes = sizes.bytes_read(num_tokens) + num_kv_bytes
        num_ops = 2 * (num_tokens * sizes.num_values + num_heads * sizes.num_head_values)
        return max(num_bytes / limits.bytes_per_s, num_ops / limits.ops_per_s)

    num_prompt_tokens = num_requests * input_len
    num_chunks = -(-num_prompt_tokens // max_num_batched_tokens)
    prefill_s = num_chunks * step_s(num_prompt_tokens / num_chunks, num_requests / num_chunks)
    rows = min(num_requests, max_num_seqs, max_num_batched_tokens)
    decode_s = sum(
        step_s(rows, rows, rows * kv_bytes(groups, context)) for context in range(input_len + 1, input_len + output_len)
    )
    return Floor(prefill_s, decode_s * num_requests / rows)


def kv_bytes(groups: tuple[StateGroup, ...], context: int) -> int:
    """What one query reads that sees `context` tokens, itself included."""
    return sum(group.bytes_per_token * min(context, group.window or context) for group in groups)


def report(limits: Limits, floor: Floor, seconds: float) -> dict[str, Any]:
    """For the results of a benchmark that took `seconds`."""
    return {
        "precision": limits.precision,
        "memory_bytes_per_s": limits.bytes_per_s,
        "product_ops_per_s": limits.ops_per_s,
        "floor_s": floor.total_s,
        "share": floor.total_s / seconds,
    }
