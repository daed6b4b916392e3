"""Times linear layers over each kind of weights.

    python bench/linear.py [outputs inputs]

M = 1: GB/s of weights, a different matrix each time, as many as it takes to leave the processor's caches.
M = 4 to 512: billions of operations per second (two for each weight and row), with the activations' quantisation in it.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable

import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from motet.ops.cpu import CpuOps, isa
from motet.ops.cpu.packing import PackedLinear
from motet.ops.gguf_types import DEQUANTIZERS
from motet.ops.quantized import SCHEMES, QuantizedMatrix
from motet.ops.reference.quantized import random_blocks

ROWS = (4, 16, 64, 512)
CACHE_BYTES = 64 << 20


def best_seconds(call: Callable[[], object], limit: float = 0.3) -> float:
    times = []
    end = time.perf_counter() + limit
    while len(times) < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure(name: str, source: Tensor | QuantizedMatrix, scheme: str | None, num_inputs: int) -> None:
    ops = CpuOps()
    begin = time.perf_counter()
    packed: PackedLinear = ops.pack_linear(source, scheme=scheme)
    pack_seconds = time.perf_counter() - begin
    copies = [packed, *(ops.pack_linear(source, scheme=scheme) for _ in range(CACHE_BYTES // packed.num_bytes))]
    x = torch.randn(max(ROWS), num_inputs).bfloat16()
    turn = itertools.cycle(copies)
    cold = best_seconds(lambda: [ops.linear(x[:1], next(turn)) for _ in copies]) / len(copies)
    warm = best_seconds(lambda: ops.linear(x[:1], packed))
    num_weights = packed.num_outputs * num_inputs
    rates = [
        2e-9 * num_rows * num_weights / best_seconds(lambda m=num_rows: ops.linear(x[:m], packed)) for num_rows in ROWS
    ]
    print(
        f"{name:<6}{packed.num_bytes / cold / 1e9:8.1f} GB/s{packed.num_bytes / warm / 1e9:8.1f} cached"
        + "".join(f"{rate:8.0f}" for rate in rates)
        + f"{num_weights / pack_seconds / 1e6:10.0f}"
    )


def main() -> None:
    num_outputs, num_inputs = (int(argument) for argument in sys.argv[1:] or ("2048", "2048"))
    print(f"kernels: {isa()}, threads: {torch.get_num_threads()}, {num_outputs} outputs, {num_inputs} inputs")
    print(
        f"{'':<6}{'M=1':>13}{'':>15}"
        + "".join(f"{f'M={num_rows}':>8}" for num_rows in ROWS)
        + "  GOP/s; packed M weights/s"
    )
    weight = torch.randn(num_outputs, num_inputs).bfloat16() / num_inputs**0.5
    measure("bf16", weight, None, num_inputs)
    for scheme in SCHEMES:
        measure(scheme, weight, scheme, num_inputs)
    for kind in DEQUANTIZERS:
        if num_inputs % 256 == 0 or not kind.name.endswith("K"):
            measure(kind.name, random_blocks(GGMLQuantizationType(kind), num_outputs, num_inputs), None, num_inputs)


if __name__ == "__main__":
    main()
