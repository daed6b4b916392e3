"""What a model is built from.

Building a model is loading it: each block takes its tensors by name and shape from the context, so that a missing,
extra or misshapen tensor is an error of the block that wanted it, and no second list of parameters exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from motet.attention.protocol import AttentionBackend
from motet.core.block_types import BlockType
from motet.core.config import LoRAConfig
from motet.core.errors import LoadError
from motet.core.state import Paged
from motet.nn.lora import NOT_ADAPTABLE, Adaptable, AdapterSite, LinearAdapters
from motet.ops.backend import ReferenceOps
from motet.ops.quantized import Matrix, scheme_bytes

RELEASE_BYTES = 32 << 20  # taken between two releases: about what loading holds beside the packed weights

S = TypeVar("S", bound=tuple[int, ...])
T = TypeVar("T", bound=Matrix)


class WeightSource(Protocol):
    """Tensors of a checkpoint under Hugging Face's names."""

    where: str  # for messages: the file or folder

    def names(self) -> Iterable[str]: ...

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor in `dtype`. `shape` is only a wish (sources that invent tensors need it); raises KeyError."""

    def kind(self, name: str) -> BlockType | None:
        """The GGUF type that `matrix` keeps; None for floats in the model's dtype."""
        return None

    def matrix(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Matrix:
        """The same for a weight of a linear layer or an embedding, which GGUF files keep in the type that it has there:
        blocks of it, or floats in place of `dtype`."""
        return self.get(name, shape, dtype)

    def release(self) -> None:
        """Give back memory that only mirrors files. What was got stays valid."""
        return


class Weights:
    """A source that remembers what was taken."""

    def __init__(self, source: WeightSource) -> None:
        self.source = source
        self._names = set(source.names())
        self._taken: set[str] = set()
        self._num_unreleased = 0
        self.sizes: dict[str, tuple[int, int]] = {}  # of each tensor taken so far, its values and the bytes they take

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.sizes.values())

    def has(self, name: str) -> bool:
        return name in self._names

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._take(self.source.get, name, shape, dtype)

    def take_matrix(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Matrix:
        return self._take(self.source.matrix, name, shape, dtype)

    def _take(self, get: Callable[[str, S, torch.dtype], T], name: str, shape: S, dtype: torch.dtype) -> T:
        if self._num_unreleased > RELEASE_BYTES:
            self._release()
        try:
            tensor = get(name, shape, dtype)
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
        self.sizes[name] = (math.prod(shape), tensor.nbytes)
        self._num_unreleased += tensor.nbytes
        return tensor

    def _release(self) -> None:
        self.source.release()
        self._num_unreleased = 0

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """All is taken. Raise LoadError when tensors are left over that match none of the patterns `ignored`."""
        self._release()
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

    dtype: of activations, and of weights unless they are quantised or a GGUF file's; kv_dtype: of cached K and V, as a
    name; scheme: how floating weights of linear layers are quantised ("int8", "int4"), None: not
    lora: how much room linear layers make for adapters, None: none
    states: filled by attention blocks, layer name -> spec; adapters: filled by linear layers
    """

    def __init__(
        self,
        weights: Weights,
        ops: ReferenceOps,
        attention: AttentionBackend,
        dtype: torch.dtype,
        kv_dtype: str,
        max_model_len: int,
        scheme: str | None = None,
        lora: LoRAConfig | None = None,
    ) -> None:
        self.weights = weights
        self.ops = ops
        self.attention = attention
        self.dtype = dtype
        self.kv_dtype = kv_dtype
        self.max_model_len = max_model_len
        self.scheme = scheme
        self.lora = lora
        self.states: dict[str, Paged] = {}
        self.adapters: list[LinearAdapters] = []

    @property
    def table_scheme(self) -> str | None:
        """The same for embeddings and heads, where four bits cost too much."""
        return self.scheme and "int8"

    def matrix(self, name: str, rows: int, columns: int, scheme: str | None, transposed: bool = False) -> Matrix:
        """The weight `name` as [rows, columns]; `transposed`: it is stored the other way round.

        scheme: with which it will be packed; only its size is booked here
        """
        if transposed:
            matrix: Matrix = self.weights.take(name, (columns, rows), self.dtype).T.contiguous()
        else:
            matrix = self.weights.take_matrix(name, (rows, columns), self.dtype)
        self._book(name, matrix, scheme)
        return matrix

    def stacked_matrices(self, name: str, count: int, rows: int, columns: int, scheme: str | None) -> list[Tensor]:
        """The tensor `name` [count, rows, columns] as `count` matrices."""
        tensor = self.weights.take(name, (count, rows, columns), self.dtype)
        self._book(name, tensor.view(count * rows, columns), scheme)
        return list(tensor)

    def vector(self, name: str, size: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.weights.take(name, (size,), dtype or self.dtype)

    def adaptable(self, sites: Sequence[AdapterSite], order: Tensor | None = None) -> Adaptable:
        """Room for the adapters of a layer made of the modules `sites`."""
        if self.lora is None:
            return NOT_ADAPTABLE
        self.adapters.append(LinearAdapters(self.ops, sites, self.lora, self.dtype, order))
        return self.adapters[-1]

    def _book(self, name: str, matrix: Matrix, scheme: str | None) -> None:
        rows, columns = matrix.shape
        if scheme is not None and isinstance(matrix, Tensor):
            self.weights.sizes[name] = (rows * columns, scheme_bytes(scheme, rows, columns))
