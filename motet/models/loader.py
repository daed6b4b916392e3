"""Builds the model of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from motet.attention.protocol import AttentionBackend
from motet.core.config import DTYPES, ModelConfig
from motet.core.errors import ConfigError
from motet.core.state import StateSpec
from motet.models.checkpoint import Checkpoint
from motet.models.registry import ARCHITECTURES, Model
from motet.nn.context import BuildContext, Weights
from motet.nn.rope import rope_parameters
from motet.ops.backend import ReferenceOps


@dataclass(frozen=True)
class LoadedModel:
    model: Model
    states: dict[str, StateSpec]
    dtype: str
    vocab_size: int
    num_weight_bytes: int


def resolve_dtype(config: ModelConfig, checkpoint: Checkpoint) -> str:
    """`auto` is the checkpoint's own dtype; a float32 checkpoint stays float32."""
    if config.dtype != "auto":
        return config.dtype
    own = str(checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "float32")
    return own if own in DTYPES else "float32"


LENGTH_KEYS = ("max_position_embeddings", "n_positions", "seq_length")


def positions(config: dict[str, Any]) -> int | None:
    """How many positions a model can use by its config; None where it does not say.

    `max_position_embeddings` counts the rope scaling of llama3 and longrope, and Gemma 3's linear one. With linear and
    dynamic scaling of other models it is the length before, to be multiplied by the factor. With yarn configs of either
    kind are in use, so the original length times the factor decides. (What vLLM does, too.)
    """
    given = next((config[key] for key in LENGTH_KEYS if config.get(key)), None)
    if given is None:
        return None
    length, rope = int(given), rope_parameters(config)
    if rope.factor is None or str(config.get("model_type", "")).startswith("gemma3"):
        return length
    if rope.rope_type == "yarn":
        return int((rope.original_max_position_embeddings or length) * rope.factor)
    return int(length * rope.factor) if rope.rope_type in ("linear", "dynamic") else length


def resolve_max_model_len(config: ModelConfig, checkpoint: Checkpoint) -> int:
    """The context length: the option, or all positions of the model. Raises ConfigError beyond those."""
    limit = positions(checkpoint.config)
    if config.max_model_len is None:
        return limit or 2048
    if limit is not None and config.max_model_len > limit:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is beyond the {limit} positions of {checkpoint.where!r}; lower it, "
            "or pass rope parameters through hf_overrides"
        )
    return config.max_model_len


def load_model(
    checkpoint: Checkpoint,
    ops: ReferenceOps,
    attention: AttentionBackend,
    dtype: str,
    kv_dtype: str,
    max_model_len: int,
    scheme: str | None = None,
) -> LoadedModel:
    """Read every tensor and build the model. Raises LoadError when config and tensors do not fit each other exactly.

    scheme: "int8" or "int4" quantises the weights of linear layers, None leaves them as they are stored
    """
    factory = ARCHITECTURES.get(checkpoint.architecture)
    weights = Weights(checkpoint.source)
    ctx = BuildContext(weights, ops, attention, getattr(torch, dtype), kv_dtype, max_model_len, scheme)
    model = factory(ctx, checkpoint.config)
    weights.finish(model.ignored_tensors)
    return LoadedModel(model, dict(ctx.states), dtype, int(checkpoint.config["vocab_size"]), weights.num_bytes)
