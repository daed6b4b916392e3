"""Low-rank adapters (Hu et al. 2021): the definition, with its samples and tolerance."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.lora import LoraWeights
from motet.ops.reference.linear import TOLERANCE
from motet.ops.registry import OpSpec, Sample, define_op


def lora(y: Tensor, x: Tensor, weights: LoraWeights, tokens: Tensor, slots: Tensor) -> Tensor:
    """Row tokens[i] of y [T, N] plus (scale * (x A')) B' of the adapter in slots[i], part by part; other rows stay.

    x: [T, K] and y of one dtype; tokens: int64 [A], each once; slots: int32 [A], rising. Products, sums and the
    addition to y are in float32, and the result is rounded to y's dtype once more. A backend may write to y.
    """
    out = y.clone()
    for slot in slots.unique().tolist():
        rows = tokens[slots == slot]
        for part, rank in enumerate(weights.ranks[slot].tolist()):
            columns = weights.columns(part)
            low = x[rows].float() @ weights.a[slot, part, :rank].float().T * weights.scales[slot, part]
            added = low @ weights.b_of(slot, part).float().T
            out[rows, columns] = (out[rows, columns].float() + added).to(y.dtype)
    return out


# Inputs, widths of the parts, largest rank, slot of each token (-1: none).
SHAPES: tuple[tuple[int, tuple[int, ...], int, tuple[int, ...]], ...] = (
    (64, (48,), 8, (0,)),
    (33, (40, 7, 70), 20, (1, -1, 0, 2, 1, 1, 0, -1, 2, 1, 1, 1, 1)),
    (576, (192, 130), 256, (2, 0, 2, 2)),
    (100, (65,), 5, (-1, -1, -1)),
)


def random_lora(
    num_inputs: int, widths: tuple[int, ...], max_rank: int, token_slots: tuple[int, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor, LoraWeights, Tensor, Tensor]:
    """Arguments; three slots of different ranks, in some of which a part has none."""
    generator = torch.Generator().manual_seed(num_inputs + max_rank)
    weights = LoraWeights.allocate(3, num_inputs, widths, max_rank, dtype)
    for slot in range(3):
        for part, width in enumerate(widths):
            rank = max(1, max_rank // (1 + slot))
            if (slot + part) % 4 != 3:
                a, b = (torch.randn(shape, generator=generator) for shape in ((rank, num_inputs), (width, rank)))
                weights.put(slot, part, a / num_inputs**0.5, b / rank**0.5, 0.5 + slot)
    size = len(token_slots)
    y, x = (torch.randn(size, width, generator=generator).to(dtype) for width in (sum(widths), num_inputs))
    slots = torch.tensor(token_slots, dtype=torch.int32)
    order = slots.argsort(stable=True)[int((slots < 0).sum()) :]
    return y, x, weights, order, slots[order]


def _samples() -> list[Sample]:
    return [
        Sample(f"{dtype}-{shape[0]}-{shape[2]}".removeprefix("torch."), random_lora(*shape, dtype))
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for shape in SHAPES
    ]


LORA = define_op(OpSpec("lora", lora, _samples, TOLERANCE))
