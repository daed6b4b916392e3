"""The tensors behind the state specs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from motet.core.state import Capacity, Paged, StateGroup, StateSpec


@dataclass(frozen=True)
class PagedState:
    """K and V of one layer, [num_slots, num_kv_heads, head_size]; slot = block * block_size + offset.

    k_scale, v_scale: float32 [num_slots, num_kv_heads] of int8 and float8_e4m3fn, which stand for their product with it
    """

    k: Tensor
    v: Tensor
    group: int
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        return [x for x in (self.k, self.v, self.k_scale, self.v_scale) if x is not None]


class States(Protocol):
    """What a model asks for its state."""

    def paged(self, layer: str) -> PagedState: ...


class StateStore:
    """State by layer name. The runner allocates it once; ops write into it."""

    def __init__(self, specs: dict[str, StateSpec], groups: tuple[StateGroup, ...], capacity: Capacity) -> None:
        self._paged: dict[str, PagedState] = {}
        for index, group in enumerate(groups):
            num_slots = capacity.num_blocks[index] * capacity.block_size
            for layer in group.layers:
                spec = specs[layer]
                assert isinstance(spec, Paged)
                shape = (2, num_slots, spec.num_kv_heads)
                k, v = _zeros((*shape, spec.head_size), getattr(torch, spec.dtype)).unbind(0)
                scales = _zeros(shape, torch.float32).unbind(0) if spec.is_scaled else (None, None)
                self._paged[layer] = PagedState(k, v, index, *scales)

    def paged(self, layer: str) -> PagedState:
        return self._paged[layer]

    @property
    def num_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for state in self._paged.values() for x in state.tensors)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages stay untouched until they are written. (Not just any memory: the null block is read under a
    mask, and 0 * NaN is NaN.)"""
    raw = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
