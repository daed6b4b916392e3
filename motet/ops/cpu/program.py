"""Recorded execution: the CPU's twin of a CUDA graph (csrc/program.h).

While a model's forward runs under a `Recording`, its ops see `Buffer`s in place of tensors and their kernel calls
become nodes of a program. `Program.replay` then runs all of them in one call, for any number of tokens and rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor

from motet.core.errors import MotetError
from motet.ops.cpu.library import new_recorder, symbol_code

if TYPE_CHECKING:
    from motet._kernels import Calls, Recorder
    from motet.ops.cpu.target import Target

ALIGNMENT = 64


class RecordingError(MotetError):
    """A model did something that cannot be recorded: it must run eagerly."""


@dataclass(frozen=True)
class Count:
    """A number that is known only when the program runs."""

    name: str
    symbol: int

    @property
    def code(self) -> int:
        return symbol_code(self.symbol)

    def _refusal(self) -> RecordingError:
        return RecordingError(f"the {self.name} of a step was read as a number while the model was recorded")

    def __int__(self) -> int:
        raise self._refusal()

    def __index__(self) -> int:
        raise self._refusal()

    def __bool__(self) -> bool:
        raise self._refusal()


class Buffer:
    """Memory of a program, as ops see it: shape [count, *widths], dense. It has no values while a model is recorded."""

    is_cpu = True

    def __init__(self, reference: int, rows: Count, widths: tuple[int, ...], dtype: torch.dtype) -> None:
        self.reference, self.rows, self.widths, self.dtype = reference, rows, widths, dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        return (self.rows, *self.widths)

    @property
    def row_bytes(self) -> int:
        return prod(self.widths) * self.dtype.itemsize

    def data_ptr(self) -> int:
        return self.reference

    def dim(self) -> int:
        return 1 + len(self.widths)

    def stride(self, dim: int) -> int:
        return prod(self.widths[dim:])

    def is_contiguous(self) -> bool:
        return True

    def contiguous(self) -> Buffer:
        return self

    def __len__(self) -> int:
        return int(self.rows)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        name = getattr(function, "__name__", str(function))
        raise RecordingError(f"torch's {name} was called on a recorded buffer; only ops of the backend can be recorded")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RecordingError(f"Tensor.{name} was used on a recorded buffer; only ops of the backend can be recorded")


class Recording:
    """A program in the making, and the sink of kernel calls meanwhile. `counts`: names of what differs per step."""

    def __init__(self, counts: Sequence[str]) -> None:
        self.counts = tuple(Count(name, symbol) for symbol, name in enumerate(counts))
        self.recorder: Recorder = new_recorder()
        self.inputs: list[Buffer] = []
        self.buffers: list[Buffer] = []

    @property
    def calls(self) -> Calls:
        return self.recorder

    def input(self, rows: Count, *widths: int, dtype: torch.dtype) -> Tensor:
        """What each replay is given, in the order of these calls."""
        self.inputs.append(Buffer(self.recorder.add_input(), rows, widths, dtype))
        return cast(Tensor, self.inputs[-1])

    def empty(self, like_rows_of: Tensor, *widths: int, dtype: torch.dtype) -> Tensor:
        rows = _buffer(like_rows_of).rows
        row_bytes = prod(widths) * dtype.itemsize
        self.buffers.append(Buffer(self.recorder.add_buffer(rows.code, row_bytes), rows, widths, dtype))
        return cast(Tensor, self.buffers[-1])

    def num_rows(self, x: Tensor, times: int = 1) -> int:
        return symbol_code(_buffer(x).rows.symbol, times)

    def finish(self, outputs: Sequence[Tensor]) -> Program:
        """End it. The outputs keep their place until the next replay."""
        kept = [_buffer(output) for output in outputs]
        for buffer in kept:
            self.recorder.keep(buffer.reference)
        self.recorder.finish(len(self.counts))
        return Program(self.recorder, kept, self.buffers)


def _buffer(x: object) -> Buffer:
    if not isinstance(x, Buffer):
        raise RecordingError("a tensor that belongs to one step was used while the model was recorded")
    return x


class Program:
    """Owns the memory of its steps: one arena, as large as the largest step so far."""

    def __init__(self, recorder: Recorder, outputs: list[Buffer], buffers: list[Buffer]) -> None:
        self._recorder = recorder
        self._outputs = outputs
        self.buffers = buffers  # in the order in which ops asked for them
        self._arena = torch.empty(0, dtype=torch.uint8)

    @property
    def num_nodes(self) -> int:
        return self._recorder.num_nodes

    def replay(
        self, counts: Sequence[int], inputs: Sequence[int], poisons: bool = False, apart: bool = False
    ) -> list[Tensor]:
        """Run a step. Returns the outputs, which the next replay overwrites.

        counts: of the recording's names, in their order; inputs: addresses of contiguous tensors
        poisons: dead and fresh memory holds NaN, so that a wrong lifetime shows
        apart: no two buffers share memory, see `read`
        """
        self._reserve(self._recorder.num_arena_bytes(counts, apart))
        self._recorder.replay(counts, inputs, self._address, torch.get_num_threads(), apart, poisons)
        return [self.read(buffer, counts, apart) for buffer in self._outputs]

    def time_kernels(self, counts: Sequence[int], inputs: Sequence[int]) -> dict[str, float]:
        """Run a step; seconds by kernel, the slowest first."""
        self._reserve(self._recorder.num_arena_bytes(counts, False))
        times = self._recorder.time_nodes(counts, inputs, self._address, torch.get_num_threads())
        totals: dict[str, float] = {}
        for node, seconds in enumerate(times):
            name = self._recorder.node_name(node)
            totals[name] = totals.get(name, 0.0) + seconds
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def read(self, buffer: Buffer, counts: Sequence[int], apart: bool) -> Tensor:
        """What a buffer holds after a replay; those that are no outputs only after one with `apart`."""
        num_rows = counts[buffer.rows.symbol]
        start = self._address - self._arena.data_ptr() + self._recorder.place_of(buffer.reference, counts, apart)
        stop = start + num_rows * buffer.row_bytes
        return self._arena[start:stop].view(buffer.dtype).view(num_rows, *buffer.widths)

    def uses(self, buffer: Buffer) -> bool:
        return self._recorder.first_use(buffer.reference) >= 0

    def first_node(self, buffer: Buffer) -> str:
        """The kernel that writes a buffer first, with its place in the program."""
        node = self._recorder.first_use(buffer.reference)
        return f"{self._recorder.node_name(node)} (node {node})"

    @property
    def _address(self) -> int:
        start = self._arena.data_ptr()
        return -(-start // ALIGNMENT) * ALIGNMENT

    def _reserve(self, num_bytes: int) -> None:
        if num_bytes + ALIGNMENT > len(self._arena):
            self._arena = torch.empty(0, dtype=torch.uint8)  # first give back, then take
            self._arena = torch.empty(num_bytes + ALIGNMENT, dtype=torch.uint8)


@contextmanager
def recording(target: Target, counts: Sequence[str]) -> Iterator[Recording]:
    """Kernel calls through `target` become nodes of the recording that is given."""
    sink = Recording(counts)
    with target.redirected(sink):
        yield sink
