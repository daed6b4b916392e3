"""Runs a model without scheduler and runner: one request, given chunks, a cache of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from motet.attention.paged import PagedAttention
from motet.core.config import EngineArgs
from motet.core.state import Capacity, group_states
from motet.models.checkpoint import open_checkpoint
from motet.models.loader import LoadedModel, load_model
from motet.nn.context import WeightSource
from motet.ops.backend import ReferenceOps
from motet.tensors.forward import ForwardBatch, StepLayout, StepRows
from motet.tensors.states import StateStore

BLOCK_SIZE = 4


class Dequantized(WeightSource):
    """The same tensors, matrices of GGUF files as floats of the model's dtype."""

    def __init__(self, source: WeightSource) -> None:
        self.where, self.names, self.get = source.where, source.names, source.get  # type: ignore[method-assign]


def load(
    folder: Path | str,
    max_model_len: int = 256,
    dtype: str = "float32",
    dequantized: bool = False,
    ops: ReferenceOps | None = None,
    **options: Any,
) -> LoadedModel:
    """dequantized: weights of GGUF files as floats, so that activations are not quantised either."""
    config = EngineArgs.from_options({"model": str(folder), **options}).resolve().model
    checkpoint = open_checkpoint(config)
    if dequantized:
        checkpoint = replace(checkpoint, source=Dequantized(checkpoint.source))
    return load_model(checkpoint, ops or ReferenceOps(), PagedAttention(), dtype, dtype, max_model_len, config.scheme)


def run_logits(loaded: LoadedModel, token_ids: list[int], chunk: int, max_model_len: int = 256) -> Tensor:
    """Logits [len(token_ids), V] of one request, computed `chunk` tokens at a time."""
    groups = group_states(loaded.states, max_model_len)
    num_blocks = -(-len(token_ids) // BLOCK_SIZE) + 1
    states = StateStore(loaded.states, groups, Capacity(BLOCK_SIZE, (num_blocks,) * len(groups)))
    table = torch.arange(1, num_blocks, dtype=torch.int32).flip(0).unsqueeze(0)
    backend, out = PagedAttention(), []
    for start in range(0, len(token_ids), chunk):
        ids = torch.tensor(token_ids[start : start + chunk])
        rows = [
            StepRows(StepLayout.of([start], [len(ids)]), table.numpy(), BLOCK_SIZE, group.window) for group in groups
        ]
        batch = ForwardBatch(
            token_ids=ids,
            positions=torch.arange(start, start + len(ids)),
            logit_rows=torch.arange(len(ids)),
            attention=tuple(backend.plan_step(row) for row in rows),
        )
        out.append(loaded.model.logits(loaded.model.forward(batch, states), batch.logit_rows))
    return torch.cat(out)
