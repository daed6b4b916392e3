"""Where the CPU ops' kernel calls go: run at once, or recorded as nodes of a program (motet/ops/cpu/program.py).

An op asks its target for memory (`empty`) and for the number of rows of an argument (`num_rows`), and calls kernels
through `calls`. So one body serves both; it must not look at what a tensor holds, nor at how many rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from motet.ops.cpu.library import kernels

if TYPE_CHECKING:
    from motet._kernels import Calls


class Sink(Protocol):
    @property
    def calls(self) -> Calls:
        """The kernels; where an address is expected, they take what `data_ptr` of a tensor or buffer gives."""

    def empty(self, like_rows_of: Tensor, *widths: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised memory [rows of the other, *widths]."""

    def num_rows(self, x: Tensor, times: int = 1) -> int:
        """The length of x's first dimension, multiplied, as kernels take it."""


class EagerSink:
    """Runs kernels at once, with as many threads as torch uses."""

    @property
    def calls(self) -> Calls:
        loaded = kernels()
        loaded.num_threads = torch.get_num_threads()
        return loaded

    def empty(self, like_rows_of: Tensor, *widths: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(like_rows_of.shape[0], *widths, dtype=dtype)

    def num_rows(self, x: Tensor, times: int = 1) -> int:
        return x.shape[0] * times


class CollectingSink(EagerSink):
    """Keeps every result, in the order in which ops asked for memory."""

    def __init__(self) -> None:
        self.made: list[Tensor] = []

    def empty(self, like_rows_of: Tensor, *widths: int, dtype: torch.dtype) -> Tensor:
        self.made.append(super().empty(like_rows_of, *widths, dtype=dtype))
        return self.made[-1]


class Target:
    """The sink in use: an eager one, until another takes its place for a while."""

    def __init__(self) -> None:
        self._sink: Sink = EagerSink()

    @property
    def calls(self) -> Calls:
        return self._sink.calls

    def empty(self, like_rows_of: Tensor, *widths: int, dtype: torch.dtype) -> Tensor:
        return self._sink.empty(like_rows_of, *widths, dtype=dtype)

    def num_rows(self, x: Tensor, times: int = 1) -> int:
        return self._sink.num_rows(x, times)

    @contextmanager
    def redirected(self, sink: Sink) -> Iterator[None]:
        before, self._sink = self._sink, sink
        try:
            yield
        finally:
            self._sink = before
