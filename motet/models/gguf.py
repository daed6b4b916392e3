"""GGUF files: metadata and tensors, also of models split over several files.

The header is parsed here, since a vocabulary of 100,000 strings must be read in a fraction of a second.
Source: the GGUF specification of the ggml project (version 2 and 3, little endian).
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from motet.core.block_types import BLOCK_SIZES, BlockType
from motet.core.errors import LoadError, UnsupportedError
from motet.ops.gguf_types import PLAIN, SUPPORTED, dequantize

MAGIC = b"GGUF"
STRING, ARRAY = 8, 9
SCALARS = {
    0: ("<B", np.uint8),
    1: ("<b", np.int8),
    2: ("<H", np.uint16),
    3: ("<h", np.int16),
    4: ("<I", np.uint32),
    5: ("<i", np.int32),
    6: ("<f", np.float32),
    7: ("<?", np.bool_),
    10: ("<Q", np.uint64),
    11: ("<q", np.int64),
    12: ("<d", np.float64),
}
SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf$")


def part_number(path: Path) -> int | None:
    """The number, from 1, of a part of a split model; None for a whole one."""
    match = SPLIT_NAME.match(path.name)
    return int(match["index"]) if match else None


class TensorInfo(msgspec.Struct, frozen=True):
    """`shape` is torch's order (rows first); `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int
    num_bytes: int


class _Cursor:
    """Reads little-endian values from a buffer and moves on."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(code, self.buffer, self.at)
        self.at += struct.calcsize(code)
        return value

    def string(self) -> str:
        size = self.scalar("<Q")
        text = self.buffer[self.at : self.at + size]
        if len(text) != size:
            raise struct.error("string runs past the end")
        self.at += size
        return text.decode("utf-8", errors="surrogateescape")

    def strings(self, count: int) -> list[str]:
        buffer, at, unpack = self.buffer, self.at, struct.Struct("<Q").unpack_from
        out = []
        for _ in range(count):
            size = unpack(buffer, at)[0]
            out.append(buffer[at + 8 : at + 8 + size].decode("utf-8", errors="surrogateescape"))
            at += 8 + size
        self.at = at
        return out

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, count = self.scalar("<I"), self.scalar("<Q")
            if item == STRING:
                return self.strings(count)
            if item == ARRAY:
                return [self.value(ARRAY) for _ in range(count)]
            dtype = np.dtype(SCALARS[item][1]).newbyteorder("<")
            values = np.frombuffer(self.buffer, dtype, count, self.at).tolist()
            self.at += count * dtype.itemsize
            return values
        return self.scalar(SCALARS[kind][0])


class GGUFFile:
    """One GGUF model: `metadata` (plain Python values) and `tensors` by name, read through a memory map.

    Given one part of a split model, the other parts are found beside it. Raises LoadError for a missing, truncated or
    foreign file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._maps: dict[str, mmap.mmap] = {}
        parts = self._parts()
        for part in parts:
            self._read_part(part)
        num_parts = int(self.metadata.get("split.count", 1))
        if num_parts > len(parts):
            raise LoadError(
                f"GGUF file {str(path)!r} is one of {num_parts} parts of a model; give the parts their names "
                f"*-00001-of-{num_parts:05d}.gguf and so on back, and put them side by side"
            )

    def _parts(self) -> list[Path]:
        match = SPLIT_NAME.match(self.path.name)
        if match is None:
            return [self.path]
        count = int(match["count"])
        return [
            self.path.with_name(f"{match['stem']}-{index:05d}-of-{count:05d}.gguf") for index in range(1, count + 1)
        ]

    def _read_part(self, path: Path) -> None:
        if not path.is_file():
            hint = "" if part_number(path) is None else ": a part of the model is missing"
            raise LoadError(f"GGUF file {str(path)!r} does not exist{hint}")
        with path.open("rb") as file:
            head = file.read(8)
            if head[:4] != MAGIC or len(head) < 8:
                raise LoadError(
                    f"{str(path)!r} is not a GGUF file: it begins with {head[:4]!r} instead of {MAGIC!r}; of other "
                    "formats, give the folder"
                )
            # A private map: torch wants memory that it may write to, though nothing does.
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        version = struct.unpack("<I", head[4:])[0]
        if version not in (2, 3):
            raise UnsupportedError(f"{str(path)!r} has GGUF version {version}; supported: 2 and 3 (little endian)")
        try:
            self._read_header(buffer)
        except UnsupportedError:
            raise
        except (struct.error, KeyError, ValueError, TypeError, RecursionError) as error:
            raise LoadError(f"GGUF file {str(path)!r} is truncated or damaged: {error}; fetch it again") from None

    def _read_header(self, buffer: mmap.mmap) -> None:
        cursor = _Cursor(buffer)
        cursor.at = 8
        num_tensors, num_values = cursor.scalar("<Q"), cursor.scalar("<Q")
        for _ in range(num_values):
            key = cursor.string()
            value = cursor.value(cursor.scalar("<I"))
            self.metadata.setdefault(key, value)
        entries = []
        for _ in range(num_tensors):
            name = cursor.string()
            dims = [cursor.scalar("<Q") for _ in range(cursor.scalar("<I"))]
            entries.append((name, tuple(reversed(dims)), cursor.scalar("<I"), cursor.scalar("<Q")))
        alignment = int(self.metadata.get("general.alignment", 32))
        if alignment < 1:
            raise ValueError(f"alignment of {alignment} bytes")
        start = -(-cursor.at // alignment) * alignment
        for name, shape, number, offset in entries:
            self._add_tensor(buffer, name, shape, number, start + offset)

    def _add_tensor(self, buffer: mmap.mmap, name: str, shape: tuple[int, ...], number: int, offset: int) -> None:
        kind = next((kind for kind in SUPPORTED if kind == number), None)
        if kind is None:
            known = {int(kind): kind.name for kind in BlockType}
            raise UnsupportedError(
                f"tensor {name!r} has GGUF type {known.get(number, number)}, which is not supported; supported: "
                + ", ".join(kind.name for kind in SUPPORTED)
            )
        block_len, block_bytes = BLOCK_SIZES[kind]
        if not shape or min(shape) < 1 or shape[-1] % block_len:
            raise ValueError(f"tensor {name!r} of type {kind.name} has shape {shape}")
        num_bytes = math.prod(shape) // block_len * block_bytes
        if offset + num_bytes > len(buffer):
            raise ValueError(f"tensor {name!r} ends at byte {offset + num_bytes} of {len(buffer)}")
        self.tensors[name] = TensorInfo(name, shape, kind, offset, num_bytes)
        self._maps[name] = buffer

    def raw(self, name: str) -> torch.Tensor:
        """The bytes of a tensor, uint8, flat; a view of the file, not to be written to."""
        info = self.tensors[name]
        return torch.frombuffer(self._maps[name], dtype=torch.uint8, count=info.num_bytes, offset=info.offset)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The tensor in `dtype`, dequantised if need be. Shape: torch's order, rows first. Not to be written to."""
        info = self.tensors[name]
        return dequantize(self.raw(name), info.type, dtype).view(info.shape)

    def release(self) -> None:
        """Give the memory back that the file's pages take; they are read again when they are needed."""
        for buffer in set(self._maps.values()):
            buffer.madvise(mmap.MADV_DONTNEED)

    @property
    def num_bytes(self) -> int:
        return sum(info.num_bytes for info in self.tensors.values())

    @property
    def is_quantized(self) -> bool:
        return any(info.type not in PLAIN for info in self.tensors.values())

    @property
    def types(self) -> dict[str, int]:
        """How many tensors there are of each GGUF type."""
        counts: dict[str, int] = {}
        for info in self.tensors.values():
            counts[info.type.name] = counts.get(info.type.name, 0) + 1
        return counts


def describe_types(types: dict[str, int]) -> str:
    """For messages, the most frequent first: "210 Q4_1, 61 F32"."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(types.items(), key=lambda item: -item[1]))
