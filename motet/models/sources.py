"""Where tensors come from: safetensors files, GGUF files, or random numbers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from motet.core.block_types import BlockType
from motet.core.errors import LoadError, UnsupportedError
from motet.models.gguf import GGUFFile
from motet.nn.context import WeightSource
from motet.ops.gguf_types import PLAIN
from motet.ops.quantized import Matrix, QuantizedMatrix

INDEX = "model.safetensors.index.json"
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class SafetensorsSource(WeightSource):
    """All shards of a folder, memory-mapped. Raises LoadError for missing, damaged or contradictory shards."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._paths: dict[str, Path] = {}
        self._files: dict[Path, Any] = {}  # those that are open
        for path in self._shards(folder):
            for name in list(self._open(path).keys()):
                if name in self._paths:
                    first = str(self._paths[name])
                    raise LoadError(f"tensor {name!r} is in both {first!r} and {path.name!r}; remove one")
                self._paths[name] = path

    @staticmethod
    def _open(path: Path) -> Any:
        if not path.is_file():
            raise LoadError(f"weight file {str(path)!r} is named in {INDEX} but missing; fetch the model again")
        try:
            return safe_open(str(path), framework="pt")
        except (SafetensorError, OSError) as error:
            raise LoadError(f"weight file {str(path)!r} is truncated or damaged ({error}); fetch it again") from None

    @staticmethod
    def _shards(folder: Path) -> list[Path]:
        if (folder / INDEX).is_file():
            try:
                names = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
                return [folder / name for name in sorted(names)]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise LoadError(f"{str(folder / INDEX)!r} is not a valid index: {error!r}; fetch it again") from None
        files = [folder / "model.safetensors"] if (folder / "model.safetensors").is_file() else []
        files = files or sorted(folder.glob("*.safetensors"))
        if files:
            return files
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
            raise UnsupportedError(f"{str(folder)!r} has pickled weights only; convert them to safetensors")
        raise LoadError(f"{str(folder)!r} has no *.safetensors file")

    def names(self) -> Iterable[str]:
        return self._paths

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        path = self._paths[name]
        if path not in self._files:
            self._files[path] = self._open(path)
        tensor: Tensor = self._files[path].get_tensor(name)
        if tensor.dtype not in FLOATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UnsupportedError(f"tensor {name!r} in {self.where!r} is quantised ({kind}), which is not supported")
        # Vectors are kept as they are, and one that lay in a file would keep the whole file in memory.
        return tensor.to(dtype, copy=tensor.dim() == 1)

    def release(self) -> None:
        self._files.clear()  # a file's memory lives as long as a tensor that lies in it


class GGUFSource(WeightSource):
    """A GGUF file under Hugging Face's names. Its matrices keep their type.

    rename: GGUF name -> Hugging Face name, or None for tensors that are no weights
    restore: undoes what conversion to GGUF did to a tensor, given its Hugging Face name
    """

    def __init__(
        self, file: GGUFFile, rename: Callable[[str], str | None], restore: Callable[[str, Matrix], Matrix]
    ) -> None:
        self.where = str(file.path)
        self._file = file
        self._restore = restore
        renamed = {name: rename(name) for name in file.tensors}
        self._names = {new: old for old, new in renamed.items() if new is not None}

    def names(self) -> Iterable[str]:
        return self._names

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor = self._restore(name, self._file.tensor(self._names[name], dtype))
        assert isinstance(tensor, Tensor)
        return tensor

    def kind(self, name: str) -> BlockType | None:
        return self._file.tensors[self._names[name]].type

    def matrix(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Matrix:
        info = self._file.tensors[self._names[name]]
        if len(info.shape) != 2:
            return self.get(name, shape, dtype)
        if info.type in PLAIN:
            return self._restore(name, self._file.tensor(info.name, PLAIN[info.type]))
        blocks = self._file.raw(info.name).view(info.shape[0], -1)
        return self._restore(name, QuantizedMatrix(info.type, blocks, info.shape[1]))

    def release(self) -> None:
        self._file.release()


class DummySource(WeightSource):
    """Random weights (`load_format="dummy"`): the same for the same name, whatever else is asked for."""

    where = "load_format='dummy'"

    def names(self) -> Iterable[str]:
        return ()

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values = torch.randn(shape, generator=generator) * 0.02
        return (values + 1.0 if len(shape) == 1 and name.endswith("weight") else values).to(dtype)
