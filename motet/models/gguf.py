"""GGUF files: metadata and tensors, also of models split over several files.

The header is parsed here, since a vocabulary of 100,000 strings must be read in a fraction of a second; block formats
are those of the `gguf` package, whose dequantised values are the reference.
Source: the GGUF specification of the ggml project (version 2 and 3, little endian).
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from motet.core.errors import LoadError, UnsupportedError

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
PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
SUPPORTED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf$")


class TensorInfo(msgspec.Struct, frozen=True):
    """`shape` is torch's order (rows first); `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
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
        for part in self._parts():
            self._read_part(part)

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
            raise LoadError(f"GGUF file {str(path)!r} does not exist")
        with path.open("rb") as file:
            head = file.read(8)
            if head[:4] != MAGIC or len(head) < 8:
                raise LoadError(f"{str(path)!r} is not a GGUF file: it begins with {head[:4]!r} instead of {MAGIC!r}")
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        version = struct.unpack("<I", head[4:])[0]
        if version not in (2, 3):
            raise UnsupportedError(f"{str(path)!r} has GGUF version {version}; supported: 2 and 3 (little endian)")
        try:
            self._read_header(buffer)
        except (struct.error, KeyError, ValueError, IndexError) as error:
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
        start = -(-cursor.at // alignment) * alignment
        for name, shape, kind, offset in entries:
            self._add_tensor(buffer, name, shape, GGMLQuantizationType(kind), start + offset)

    def _add_tensor(
        self, buffer: mmap.mmap, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType, offset: int
    ) -> None:
        if kind.name not in SUPPORTED:
            raise UnsupportedError(f"tensor {name!r} has GGUF type {kind.name}; supported: {', '.join(SUPPORTED)}")
        block_len, block_bytes = GGML_QUANT_SIZES[kind]
        num_bytes = int(np.prod(shape)) // block_len * block_bytes
        if offset + num_bytes > len(buffer):
            raise ValueError(f"tensor {name!r} ends at byte {offset + num_bytes} of {len(buffer)}")
        self.tensors[name] = TensorInfo(name, shape, kind, offset, num_bytes)
        self._maps[name] = buffer

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The tensor in `dtype`, dequantised if need be. Shape: torch's order, rows first."""
        info = self.tensors[name]
        raw = np.frombuffer(self._maps[name], np.uint8, info.num_bytes, info.offset)
        if info.type in PLAIN:
            # The map is read-only, hence the copy for tensors that already have the right type.
            return torch.tensor(raw).view(PLAIN[info.type]).view(info.shape).to(dtype)
        rows = raw.reshape(info.shape[0], -1) if len(info.shape) > 1 else raw
        return torch.from_numpy(dequantize(rows, info.type)).view(info.shape).to(dtype)

    @property
    def num_bytes(self) -> int:
        return sum(info.num_bytes for info in self.tensors.values())

    @property
    def types(self) -> dict[str, int]:
        """How many tensors there are of each GGUF type."""
        counts: dict[str, int] = {}
        for info in self.tensors.values():
            counts[info.type.name] = counts.get(info.type.name, 0) + 1
        return counts
