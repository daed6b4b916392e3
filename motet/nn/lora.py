"""Low-rank adapters of linear layers (Hu et al. 2021): where they lie, and the layer that adds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from motet.core.config import LoRAConfig
from motet.ops.backend import ReferenceOps
from motet.ops.lora import LoraWeights
from motet.tensors.forward import AdapterRows


@dataclass(frozen=True)
class AdapterSite:
    """A module of the model that an adapter can change. is_transposed: its matrix is stored [in, out]."""

    module: str
    num_inputs: int
    num_outputs: int
    is_transposed: bool


@dataclass(frozen=True)
class LoraPair:
    """What an adapter has for one module: a [rank, inputs], b [outputs, rank]; the outputs get scale * (x A') B'."""

    a: Tensor
    b: Tensor
    scale: float


class Adaptable(Protocol):
    def __call__(self, y: Tensor, x: Tensor, adapters: AdapterRows) -> Tensor:
        """y [T, N], the layer's outputs for x [T, K], with what the adapters of these rows add."""


class NotAdaptable:
    """No adapter ever changes this layer."""

    def __call__(self, y: Tensor, x: Tensor, adapters: AdapterRows) -> Tensor:
        return y


NOT_ADAPTABLE = NotAdaptable()


class LinearAdapters:
    """Slots for the adapters of one linear layer, whose modules' outputs stand side by side.

    order: as of Linear. The weights keep their place: recorded programs know their address.
    """

    def __init__(
        self,
        ops: ReferenceOps,
        sites: Sequence[AdapterSite],
        config: LoRAConfig,
        dtype: torch.dtype,
        order: Tensor | None = None,
    ) -> None:
        self.ops, self.sites, self.order = ops, sites, order
        widths = [site.num_outputs for site in sites]
        self.weights = LoraWeights.allocate(config.max_loras, sites[0].num_inputs, widths, config.max_rank, dtype)

    def __call__(self, y: Tensor, x: Tensor, adapters: AdapterRows) -> Tensor:
        return self.ops.lora(y, x, self.weights, adapters.tokens, adapters.slots)

    def load(self, slot: int, pairs: Mapping[str, LoraPair]) -> None:
        """An adapter takes the place of what was in `slot` (from 0 on). pairs: by module, of those that it changes."""
        self.weights.clear(slot)
        for part, site in enumerate(self.sites):
            if site.module in pairs:
                pair = pairs[site.module]
                b = pair.b if self.order is None else pair.b[self.order]
                self.weights.put(slot, part, pair.a, b, pair.scale)
