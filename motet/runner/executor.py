"""How a forward pass is run."""

from __future__ import annotations

from typing import Protocol

import torch

from motet.models.registry import Model
from motet.tensors.forward import ForwardBatch, ForwardOutput
from motet.tensors.states import States


class Executor(Protocol):
    def run(self, batch: ForwardBatch) -> ForwardOutput: ...


class EagerExecutor:
    """Calls the model op by op."""

    def __init__(self, model: Model, states: States) -> None:
        self.model = model
        self.states = states

    def run(self, batch: ForwardBatch) -> ForwardOutput:
        if batch.num_tokens == 0:  # a step that only delivers frees
            nothing = torch.zeros(0, 0)
            return ForwardOutput(nothing, nothing)
        hidden = self.model.forward(batch, self.states)
        return ForwardOutput(hidden, self.model.logits(hidden, batch.logit_rows))
