"""From the `model` option to config, weights and tokenizer files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from motet.core.config import READABLE, ModelConfig
from motet.core.errors import ConfigError, LoadError, UnsupportedError
from motet.models.gguf import GGUFFile, describe_types, part_number
from motet.models.gguf_maps import config_of, family_of, rename
from motet.models.registry import PACKAGED, packaged_model
from motet.models.sources import DummySource, GGUFSource, SafetensorsSource
from motet.nn.context import WeightSource

HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
HUB_REPEATED = ["*/*", "consolidated*"]  # the same weights in other formats
# What tools of before `quantization_config` left beside the weights.
METHOD_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}


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
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=HUB_FILES, ignore_patterns=HUB_REPEATED))
    except LocalEntryNotFoundError:
        reason = "the hub cannot be reached and no copy is in the local cache"
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
    raise LoadError(f"model {model!r} is not on this machine and cannot be fetched: {reason}; give a local path")


def open_checkpoint(config: ModelConfig) -> Checkpoint:
    """Find the model and read its config; tensors are read later, when the model is built."""
    path = locate(config.model, config.revision)
    if path.is_dir() and not (path / "config.json").is_file():
        path = _gguf_in(path)
    checkpoint = _open_folder(path, config) if path.is_dir() else _open_gguf(path, config)
    override(checkpoint.config, config.hf_overrides)
    return checkpoint


def override(config: dict[str, Any], values: dict[str, Any]) -> None:
    """`hf_overrides`: top-level keys. A `rope_theta` also replaces the one that transformers 5 keeps a level deeper."""
    config.update(values)
    rope = config.get("rope_parameters")
    if "rope_theta" in values and isinstance(rope, dict):
        rope.get("full_attention", rope)["rope_theta"] = values["rope_theta"]


def _gguf_in(folder: Path) -> Path:
    files = [file for file in sorted(folder.glob("*.gguf")) if part_number(file) in (None, 1)]
    if not files:
        raise LoadError(f"folder {str(folder)!r} has neither config.json nor a *.gguf file: not a model")
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise LoadError(f"folder {str(folder)!r} has {len(files)} GGUF models; name the one to use: {names}")
    return files[0]


def _open_folder(folder: Path, config: ModelConfig) -> Checkpoint:
    values = read_json(folder / "config.json")
    method = quantization_method(folder, values)
    if method is not None:
        raise UnsupportedError(
            f"{str(folder)!r} is quantised with {method}, which is not supported; Motet runs {READABLE}"
        )
    if config.quantization == "gguf":
        raise ConfigError(f"quantization='gguf' needs a GGUF file, but {str(folder)!r} is a folder of safetensors")
    generation = folder / "generation_config.json"
    return Checkpoint(
        where=str(folder),
        config=values,
        source=DummySource() if config.load_format == "dummy" else SafetensorsSource(folder),
        generation_config=read_json(generation) if generation.is_file() else {},
        folder=folder,
    )


def quantization_method(folder: Path, config: dict[str, Any]) -> str | None:
    """How a checkpoint says that its weights are quantised; None where they are not."""
    for key in ("quantization_config", "compression_config"):
        values = config.get(key)
        if isinstance(values, dict) and values:
            if "quant_method" in values:
                return str(values["quant_method"])
            flags = ("load_in_8bit", "load_in_4bit", "_load_in_8bit", "_load_in_4bit")
            return "bitsandbytes" if any(values.get(flag) for flag in flags) else f"an unknown method ({key}={values})"
    return next((method for name, method in METHOD_FILES.items() if (folder / name).is_file()), None)


def _open_gguf(path: Path, config: ModelConfig) -> Checkpoint:
    file = GGUFFile(path)
    if config.scheme is not None and file.is_quantized:
        raise ConfigError(
            f"quantization={config.scheme!r} quantises floating checkpoints, but {str(path)!r} is already quantised "
            f"({describe_types(file.types)}); leave the option out"
        )
    family = family_of(file)
    values = config_of(file, family)
    source: WeightSource = GGUFSource(file, partial(rename, family), partial(family.restore, values))
    if config.load_format == "dummy":
        source = DummySource()
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
