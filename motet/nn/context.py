"""What a model is built from.

Building a model is loading it: each block takes its tensors by name and shape from the context, so that a missing,
extra or misshapen tensor is an error of the block that wanted it, and no second list of parameters exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Protocol

import torch
from torch import Tensor

from motet.attention.protocol import AttentionBackend
from motet.core.errors import LoadError
from motet.core.state import Paged
from motet.ops.backend import ReferenceOps


class WeightSource(Protocol):
    """Tensors of a checkpoint under Hugging Face's names."""

    where: str  # for messages: the file or folder

    def names(self) -> Iterable[str]: ...

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor in `dtype`. `shape` is only a wish (sources that invent tensors need it); raises KeyError."""


class Weights:
    """A source that remembers what was taken."""

    def __init__(self, source: WeightSource) -> None:
        self.source = source
        self._names = set(source.names())
        self._taken: set[str] = set()
        self.num_bytes = 0  # of all tensors taken so far
        self.sizes: dict[str, tuple[int, int]] = {}  # of each, its values and its bytes

    def has(self, name: str) -> bool:
        return name in self._names

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        try:
            tensor = self.source.get(name, shape, dtype)
        except KeyError:
            raise LoadError(
                f"tensor {name!r} is missing from {self.source.where!r}; the checkpoint is incomplete or of "
                "another architecture than its config says"
            ) from None
        if tuple(tensor.shape) != shape:
            raise LoadError(
                f"tensor {name!r} in {self.source.where!r} has shape {tuple(tensor.shape)}, but the config asks for "
                f"{shape}; config and weights do not belong together"
            )
        self._taken.add(name)
        self.num_bytes += tensor.numel() * tensor.element_size()
        self.sizes[name] = (tensor.numel(), tensor.numel() * tensor.element_size())
        return tensor

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """Raise LoadError when tensors are left over that match none of the patterns `ignored`."""
        patterns = tuple(ignored)
        extra = sorted(
            name for name in self._names - self._taken if not any(fnmatchcase(name, pattern) for pattern in patterns)
        )
        if extra:
            shown = ", ".join(extra[:5]) + (f", ... ({len(extra)} in all)" if len(extra) > 5 else "")
            raise LoadError(
                f"{self.source.where!r} has tensors that its architecture does not use: {shown}; the checkpoint is of "
                "another architecture than its config says, or carries adapters that must be merged first"
            )


class BuildContext:
    """Handed to every block's constructor.

    dtype: of weights and activations; kv_dtype: of cached K and V, as a name
    states: filled by attention blocks, layer name -> spec
    """

    def __init__(
        self,
        weights: Weights,
        ops: ReferenceOps,
        attention: AttentionBackend,
        dtype: torch.dtype,
        kv_dtype: str,
        max_model_len: int,
    ) -> None:
        self.weights = weights
        self.ops = ops
        self.attention = attention
        self.dtype = dtype
        self.kv_dtype = kv_dtype
        self.max_model_len = max_model_len
        self.states: dict[str, Paged] = {}

    def matrix(self, name: str, rows: int, columns: int, transposed: bool = False) -> Tensor:
        """The weight `name` as [rows, columns] in the model's dtype; `transposed`: it is stored the other way round."""
        if transposed:
            return self.weights.take(name, (columns, rows), self.dtype).T.contiguous()
        return self.weights.take(name, (rows, columns), self.dtype)

    def vector(self, name: str, size: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.weights.take(name, (size,), dtype or self.dtype)
