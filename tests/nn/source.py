"""A source of tensors that a test has at hand, and a context over it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from motet.attention.paged import PagedAttention
from motet.nn.context import BuildContext, Weights, WeightSource
from motet.ops.backend import ReferenceOps


class DictSource(WeightSource):
    where = "here"

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def names(self) -> Iterable[str]:
        return self.tensors

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self.tensors[name].to(dtype)


def context(tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> BuildContext:
    return BuildContext(Weights(DictSource(tensors)), ReferenceOps(), PagedAttention(), dtype, "float32", 64)
