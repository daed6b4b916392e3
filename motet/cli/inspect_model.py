"""`motet inspect`: what a model is made of, and what of its state fits into memory, without reading its weights."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motet.cli.flags import Given, with_flags
from motet.cli.options import ENGINE
from motet.cli.terminal import print_fields
from motet.core.config import EngineArgs, EngineConfig

if TYPE_CHECKING:
    import torch

    from motet.models.checkpoint import Checkpoint
    from motet.nn.context import WeightSource
    from motet.ops.backend import ReferenceOps
    from motet.ops.quantized import Matrix


@with_flags(engine=ENGINE)
def inspect_model(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    *,
    engine: Given,
) -> None:
    """Show what a model is made of.

    Architecture, sizes, dtypes, state, and how many blocks of the KV cache would fit now. No weights are read.
    """
    report = collect(EngineArgs.from_options(engine).resolve())
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        print_fields(_rows(report))


def collect(config: EngineConfig) -> dict[str, Any]:
    """Raises the errors that loading the model would raise, except for damaged weights."""
    from motet.models.checkpoint import open_checkpoint
    from motet.models.loader import resolve_max_model_len
    from motet.text.load import load_tokenizer

    checkpoint = open_checkpoint(config.model)
    tokenizer = None if config.model.skip_tokenizer_init else load_tokenizer(checkpoint, config.model)
    max_model_len = resolve_max_model_len(config.model, checkpoint)
    values = checkpoint.config
    report: dict[str, Any] = {
        "model": {
            "name": config.model.model,
            "where": checkpoint.where,
            "architecture": checkpoint.architecture,
            "model_type": values.get("model_type"),
            "num_layers": values.get("num_hidden_layers") or values.get("n_layer"),
            "hidden_size": values.get("hidden_size") or values.get("n_embd"),
            "vocab_size": values.get("vocab_size"),
            "max_model_len": max_model_len,
        },
        **_weights_and_state(config, checkpoint, max_model_len),
    }
    if tokenizer is not None:
        report["text"] = {
            "tokens": tokenizer.vocab_size,
            "bos": tokenizer.bos_token,
            "eos_token_ids": sorted(tokenizer.eos_token_ids),
            "chat_template": bool(tokenizer.chat_template),
        }
    return report


def _weights_and_state(config: EngineConfig, checkpoint: Checkpoint, max_model_len: int) -> dict[str, Any]:
    from motet.attention.paged import PagedAttention
    from motet.core.state import group_states
    from motet.models.loader import load_model, resolve_dtype
    from motet.runner.build import state_budget
    from motet.runner.memory import plan_capacity

    dtype = resolve_dtype(config.model, checkpoint)
    kv_dtype = dtype if config.cache.kv_cache_dtype == "auto" else config.cache.kv_cache_dtype
    shapes = ShapeSource(checkpoint.source)
    bare = replace(checkpoint, source=shapes)
    scheme = config.model.scheme
    loaded = load_model(bare, _ops_without_weights(), PagedAttention(), dtype, kv_dtype, max_model_len, scheme)
    groups = group_states(loaded.states, max_model_len)
    budget = state_budget(config, checkpoint, loaded.vocab_size, loaded.num_weight_bytes)
    capacity = plan_capacity(config.cache, config.scheduler, groups, max_model_len, budget)
    return {
        "weights": {
            "parameters": shapes.num_parameters,
            "dtype": dtype,
            "quantization": config.model.quantization,
            "bytes": loaded.num_weight_bytes,
            "file_bytes": sum(num_bytes for _, num_bytes in _stored(checkpoint)),
            "file_types": dict(Counter(kind for kind, _ in _stored(checkpoint)).most_common()),
        },
        "state": {
            "kv_cache_dtype": kv_dtype,
            "bytes_per_token": sum(group.bytes_per_token for group in groups),
            "block_size": capacity.block_size,
            "budget_bytes": budget,
            "groups": [
                {
                    "name": group.name,
                    "window": group.window,
                    "layers": len(group.layers),
                    "bytes_per_token": group.bytes_per_token,
                    "blocks": num_blocks - 1,  # without the null block
                    "tokens": (num_blocks - 1) * capacity.block_size,
                }
                for group, num_blocks in zip(groups, capacity.num_blocks)
            ],
        },
    }


def _ops_without_weights() -> ReferenceOps:
    """Ops that keep no weights: the model that is built with them never runs."""
    from motet.ops.backend import ReferenceOps

    class Ops(ReferenceOps):
        pack_linear = staticmethod(lambda *parts, scheme=None: None)

    return Ops()


class ShapeSource:
    """Stands before a checkpoint's tensors and gives only shapes, so that a model is built without reading one."""

    def __init__(self, source: WeightSource) -> None:
        self.where = source.where
        self.kind = source.kind
        self.release = source.release
        self.num_parameters = 0
        self._names = set(source.names())

    def names(self) -> Iterable[str]:
        return self._names

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        import torch

        if self._names and name not in self._names:  # a source that invents tensors has no names
            raise KeyError(name)
        self.num_parameters += math.prod(shape)
        return torch.empty(shape, dtype=dtype, device="meta")

    def matrix(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Matrix:
        import torch

        from motet.core.block_types import BLOCK_SIZES
        from motet.ops.gguf_types import PLAIN
        from motet.ops.quantized import QuantizedMatrix

        tensor = self.get(name, shape, dtype)
        kind = self.kind(name)
        if kind is None:
            return tensor
        if kind in PLAIN:
            return tensor.to(PLAIN[kind])
        block_len, block_bytes = BLOCK_SIZES[kind]
        row_bytes = shape[1] // block_len * block_bytes
        return QuantizedMatrix(kind, torch.empty(shape[0], row_bytes, dtype=torch.uint8, device="meta"), shape[1])


def _stored(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    """Type and size in bytes of each tensor in the files."""
    if checkpoint.gguf is not None:
        return [(info.type.name, info.num_bytes) for info in checkpoint.gguf.tensors.values()]
    assert checkpoint.folder is not None
    return [
        (entry["dtype"], entry["data_offsets"][1] - entry["data_offsets"][0])
        for path in sorted(checkpoint.folder.glob("*.safetensors"))
        for name, entry in safetensors_header(path).items()
        if name != "__metadata__"
    ]


def safetensors_header(path: Path) -> dict[str, Any]:
    """The format: eight bytes with the header's length, then the header as JSON."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(size))
    return header


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for title, values in report.items():
        rows.append((title.capitalize(), ""))
        for name, value in values.items():
            if name == "groups":
                rows += [(f"group {group['name']}", _group(group)) for group in value]
            else:
                rows.append((name.removesuffix("_bytes").replace("_", " "), _show(name, value)))
    return rows


def _group(group: dict[str, Any]) -> str:
    return (
        f"{group['layers']} layers, {group['bytes_per_token'] / 2**10:.1f} KiB per token: room for {group['blocks']} "
        f"blocks = {group['tokens']} tokens"
    )


def _show(name: str, value: Any) -> str:
    if name in ("bytes", "file_bytes", "budget_bytes"):
        return f"{value / 2**20:.1f} MiB"
    if name == "parameters":
        return f"{value / 1e6:.1f} million"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{count} {kind}" for kind, count in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "-" if value is None else str(value)
