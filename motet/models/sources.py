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

from motet.core.errors import LoadError, UnsupportedError
from motet.models.gguf import GGUFFile

INDEX = "model.safetensors.index.json"


class SafetensorsSource:
    """All shards of a folder, memory-mapped. Raises LoadError for missing or damaged shards."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._files: dict[str, Any] = {}
        for path in self._shards(folder):
            if not path.is_file():
                raise LoadError(f"weight file {str(path)!r} is named in {INDEX} but missing; fetch the model again")
            try:
                file = safe_open(str(path), framework="pt")
            except (SafetensorError, OSError) as error:
                raise LoadError(
                    f"weight file {str(path)!r} is truncated or damaged ({error}); fetch it again"
                ) from None
            self._files.update(dict.fromkeys(file.keys(), file))

    @staticmethod
    def _shards(folder: Path) -> list[Path]:
        if (folder / INDEX).is_file():
            try:
                index = json.loads((folder / INDEX).read_text())["weight_map"]
            except (ValueError, KeyError) as error:
                raise LoadError(f"{str(folder / INDEX)!r} is not a valid index: {error!r}") from None
            return [folder / name for name in sorted(set(index.values()))]
        files = [folder / "model.safetensors"] if (folder / "model.safetensors").is_file() else []
        files = files or sorted(folder.glob("*.safetensors"))
        if files:
            return files
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
            raise UnsupportedError(f"{str(folder)!r} has pickled weights only; convert them to safetensors")
        raise LoadError(f"{str(folder)!r} has no *.safetensors file")

    def names(self) -> Iterable[str]:
        return self._files

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        if not tensor.is_floating_point():
            raise UnsupportedError(f"tensor {name!r} in {self.where!r} is {tensor.dtype}: quantised weights")
        return tensor.to(dtype)


class GGUFSource:
    """A GGUF file under Hugging Face's names.

    rename: GGUF name -> Hugging Face name, or None for tensors that are no weights
    restore: undoes what conversion to GGUF did to a tensor, given its Hugging Face name
    """

    def __init__(
        self, file: GGUFFile, rename: Callable[[str], str | None], restore: Callable[[str, Tensor], Tensor]
    ) -> None:
        self.where = str(file.path)
        self._file = file
        self._restore = restore
        renamed = {name: rename(name) for name in file.tensors}
        self._names = {new: old for old, new in renamed.items() if new is not None}

    def names(self) -> Iterable[str]:
        return self._names

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._restore(name, self._file.tensor(self._names[name], dtype))


class DummySource:
    """Random weights (`load_format="dummy"`): the same for the same name, whatever else is asked for."""

    where = "load_format='dummy'"

    def names(self) -> Iterable[str]:
        return ()

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values = torch.randn(shape, generator=generator) * 0.02
        return (values + 1.0 if len(shape) == 1 and name.endswith("weight") else values).to(dtype)
