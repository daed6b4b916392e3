"""Builds the model of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

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


def resolve_max_model_len(config: ModelConfig, checkpoint: Checkpoint) -> int:
    """The context length: the option, or what the model was trained for. Raises ConfigError beyond that."""
    values = checkpoint.config
    trained = next(
        (values[key] for key in ("max_position_embeddings", "n_positions", "seq_length") if values.get(key)), None
    )
    limit = trained
    rope = rope_parameters(values)
    if trained is not None and rope.factor is not None and rope.rope_type in ("linear", "dynamic", "yarn"):
        # With these, configs give the length before scaling.
        limit = int((rope.original_max_position_embeddings or trained) * rope.factor)
        limit = max(limit, trained)
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
) -> LoadedModel:
    """Read every tensor and build the model. Raises LoadError when config and tensors do not fit each other exactly."""
    factory = ARCHITECTURES.get(checkpoint.architecture)
    weights = Weights(checkpoint.source)
    ctx = BuildContext(weights, ops, attention, getattr(torch, dtype), kv_dtype, max_model_len)
    model = factory(ctx, checkpoint.config)
    weights.finish(model.ignored_tensors)
    return LoadedModel(model, dict(ctx.states), dtype, int(checkpoint.config["vocab_size"]), weights.num_bytes)
