"""From the `model` option to config, weights and tokenizer files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from motet.core.config import ModelConfig
from motet.core.errors import LoadError, UnsupportedError
from motet.models.gguf import GGUFFile
from motet.models.gguf_maps import config_of, family_of, rename
from motet.models.registry import PACKAGED, packaged_model
from motet.models.sources import DummySource, GGUFSource, SafetensorsSource
from motet.nn.context import WeightSource

HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt"]


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk.

    config, generation_config: in Hugging Face's terms, whatever the format
    folder: a Hugging Face folder, or None; gguf: the open GGUF file, or None
    """

    where: str
    config: dict[str, Any]
    source: WeightSource
    generation_config: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    gguf: GGUFFile | None = None

    @property
    def architecture(self) -> str:
        names = self.config.get("architectures") or []
        if not names:
            raise LoadError(f"the config of {self.where!r} does not name its architectures")
        return str(names[0])


def locate(model: str, revision: str | None = None) -> Path:
    """A local folder or GGUF file for an alias, a path or a hub id. Raises LoadError."""
    if model in PACKAGED:
        return packaged_model(model)
    path = Path(model).expanduser()
    if path.exists():
        return path
    if model.count("/") != 1 or model.startswith((".", "/", "~")) or model.endswith(".gguf"):
        raise LoadError(
            f"model {model!r} is no folder, no GGUF file, no packaged model ({', '.join(PACKAGED)}) "
            "and does not look like a hub id (owner/name)"
        )
    return _fetch(model, revision)


def _fetch(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=HUB_FILES))
    except LocalEntryNotFoundError:
        reason = "the hub cannot be reached and no copy is in the local cache"
    except HfHubHTTPError as error:
        reason = str(error).splitlines()[0]
    except OSError as error:
        reason = str(error)
    raise LoadError(f"model {model!r} is not on this machine and cannot be fetched: {reason}; give a local path")


def open_checkpoint(config: ModelConfig) -> Checkpoint:
    """Find the model and read its config; tensors are read later, when the model is built."""
    path = locate(config.model, config.revision)
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if not files:
            raise LoadError(f"folder {str(path)!r} has neither config.json nor a *.gguf file: not a model")
        if len(files) > 1 and "-00001-of-" not in files[0].name:
            raise LoadError(f"folder {str(path)!r} has {len(files)} GGUF files; name the one to use")
        path = files[0]
    checkpoint = _open_folder(path, config) if path.is_dir() else _open_gguf(path)
    checkpoint.config.update(config.hf_overrides)
    return checkpoint


def _open_folder(folder: Path, config: ModelConfig) -> Checkpoint:
    values = read_json(folder / "config.json")
    if "quantization_config" in values:
        method = values["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedError(f"{str(folder)!r} is quantised with {method!r}, which is not supported")
    generation = folder / "generation_config.json"
    dummy = config.load_format == "dummy"
    return Checkpoint(
        where=str(folder),
        config=values,
        source=DummySource() if dummy else SafetensorsSource(folder),
        generation_config=read_json(generation) if generation.is_file() else {},
        folder=folder,
    )


def _open_gguf(path: Path) -> Checkpoint:
    file = GGUFFile(path)
    family = family_of(file)
    values = config_of(file, family)
    source = GGUFSource(file, partial(rename, family), partial(family.restore, values))
    return Checkpoint(where=str(path), config=values, source=source, gguf=file)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises LoadError with the file's name."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise LoadError(f"{str(path)!r} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise LoadError(f"{str(path)!r} holds a JSON {type(values).__name__} instead of an object")
    return values
