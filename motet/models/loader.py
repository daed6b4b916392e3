"""Builds the model of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from motet.attention.protocol import AttentionBackend
from motet.core.config import DTYPES, LoRAConfig, ModelConfig
from motet.core.errors import ConfigError
from motet.core.registry import LazyRegistry
from motet.core.state import StateSpec
from motet.models.checkpoint import Checkpoint
from motet.models.registry import ARCHITECTURES, Model
from motet.nn.context import BuildContext, Weights
from motet.nn.lora import LinearAdapters
from motet.nn.rope import rope_parameters
from motet.ops.backend import ReferenceOps


@dataclass(frozen=True)
class WeightSizes:
    """How much of the weights a token meets.

    num_values, num_bytes: of all layers, experts aside from those that a token passes by in the former
    num_head_values, num_head_bytes: of the head, which only rows that get a token are multiplied with
    num_expert_bytes: the part of num_bytes that belongs to experts, of whom a token sees the share `expert_share`
    """

    num_values: int
    num_bytes: int
    num_head_values: int
    num_head_bytes: int
    num_expert_bytes: int
    expert_share: float
    bytes_per_value: float  # of all weights

    def bytes_read(self, num_tokens: float) -> float:
        """By a step of `num_tokens`, with experts that are chosen evenly."""
        num_missed = self.num_expert_bytes * (1 - self.expert_share) ** num_tokens
        return self.num_bytes + self.num_head_bytes - num_missed


def weight_sizes(sizes: dict[str, tuple[int, int]], config: dict[str, Any]) -> WeightSizes:
    """From the (values, bytes) of each tensor. An embedding that is not the head as well is only looked up."""
    table = int(config["vocab_size"]) * int(config.get("hidden_size") or config.get("n_embd") or 0)
    head = next((size for size in sizes.values() if size[0] == table), (0, 0))
    experts = [size for name, size in sizes.items() if ".experts." in name]
    others = [size for name, size in sizes.items() if size[0] != table and ".experts." not in name]
    num_experts = int(config.get("num_experts") or config.get("num_local_experts") or 1)
    share = int(config.get("num_experts_per_tok") or 1) / num_experts if experts else 1.0
    expert_values, expert_bytes = (sum(size[i] for size in experts) for i in (0, 1))
    return WeightSizes(
        num_values=sum(size[0] for size in others) + int(expert_values * share),
        num_bytes=sum(size[1] for size in others) + expert_bytes,
        num_head_values=head[0],
        num_head_bytes=head[1],
        num_expert_bytes=expert_bytes,
        expert_share=share,
        bytes_per_value=sum(size[1] for size in sizes.values()) / max(1, sum(size[0] for size in sizes.values())),
    )


@dataclass(frozen=True)
class LoadedModel:
    model: Model
    states: dict[str, StateSpec]
    dtype: str
    vocab_size: int
    num_weight_bytes: int
    sizes: WeightSizes
    adapters: tuple[LinearAdapters, ...] = ()


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
    architectures: LazyRegistry[Any] = ARCHITECTURES,
    lora: LoRAConfig | None = None,
) -> LoadedModel:
    """Read every tensor and build the model. Raises LoadError when config and tensors do not fit each other exactly.

    scheme: "int8" or "int4" quantises the weights of linear layers, None leaves them as they are stored
    lora: the room for adapters, None: none
    """
    factory = architectures.get(checkpoint.architecture)
    weights = Weights(checkpoint.source)
    ctx = BuildContext(weights, ops, attention, getattr(torch, dtype), kv_dtype, max_model_len, scheme, lora)
    model = factory(ctx, checkpoint.config)
    weights.finish(model.ignored_tensors)
    return LoadedModel(
        model,
        dict(ctx.states),
        dtype,
        int(checkpoint.config["vocab_size"]),
        weights.num_bytes,
        weight_sizes(weights.sizes, checkpoint.config),
        tuple(ctx.adapters),
    )
