"""Gemma 3, text (Gemma team 2025): five layers with a window and a rope of their own to one that sees everything."""

from __future__ import annotations

from functools import partial
from typing import Any

from motet.models.config import FULL, SLIDING, DecoderConfig, layer_windows, read_config, windows_between
from motet.nn.attention import Attention, RopeTable, split_projections
from motet.nn.context import BuildContext
from motet.nn.decoder import Decoder, SandwichLayer
from motet.nn.linear import Embedding, LMHead
from motet.nn.mlp import GatedMLP
from motet.nn.norm import RMSNorm
from motet.nn.rope import RopeParameters, rope_parameters, rope_table


class Gemma3Config(DecoderConfig, frozen=True, kw_only=True):
    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 131072
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: float = 256
    final_logit_softcapping: float | None = None
    sliding_window: int | None = 4096
    sliding_window_pattern: int = 6
    layer_types: list[str] | None = None

    @property
    def windows(self) -> list[int | None]:
        types = self.layer_types or windows_between(self.sliding_window_pattern, self.num_hidden_layers)
        return layer_windows(types, self.num_hidden_layers, self.sliding_window)


def gemma3_ropes(config_dict: dict[str, Any]) -> tuple[RopeParameters, RopeParameters]:
    """Of the layers that see everything, and of those with a window.

    Configs before transformers 5 have `rope_theta` and `rope_scaling` for the former, `rope_local_base_freq` for the
    latter.
    """
    nested = config_dict.get("rope_parameters") or {}
    full = {key: config_dict.get(key) for key in ("rope_theta", "rope_scaling")}
    full["rope_parameters"] = nested.get(FULL)
    sliding = {"rope_theta": config_dict.get("rope_local_base_freq"), "rope_parameters": nested.get(SLIDING)}
    return rope_parameters(full, default_theta=1e6), rope_parameters(sliding, default_theta=1e4)


def gemma3_layer(
    ctx: BuildContext, name: str, config: Gemma3Config, rope: RopeTable, window: int | None
) -> SandwichLayer:
    norm = partial(RMSNorm, ctx, eps=config.rms_norm_eps, offset=1.0)
    width, shape = config.hidden_size, config.attention_shape(config.query_pre_attn_scalar**-0.5)
    attn = f"{name}.self_attn"
    qkv, out = split_projections(ctx, attn, shape, config.attention_bias, config.attention_bias)
    q_norm, k_norm = (norm(f"{attn}.{part}_norm", shape.head_size) for part in "qk")
    return SandwichLayer(
        ctx,
        norm(f"{name}.input_layernorm", width),
        Attention(ctx, attn, shape, qkv, out, rope, window, q_norm, k_norm),
        norm(f"{name}.post_attention_layernorm", width),
        norm(f"{name}.pre_feedforward_layernorm", width),
        GatedMLP(ctx, f"{name}.mlp", width, config.intermediate_size, config.hidden_activation),
        norm(f"{name}.post_feedforward_layernorm", width),
    )


class Gemma3ForCausalLM(Decoder):
    ignored_tensors = ("lm_head.weight",)  # where it only repeats the embedding

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        config = read_config(config_dict, Gemma3Config)
        width = config.hidden_size
        full, sliding = (
            rope_table(parameters, config.head_size, ctx.max_model_len, config.max_position_embeddings)
            for parameters in gemma3_ropes(config_dict)
        )
        embed = Embedding(ctx, "model.embed_tokens", config.vocab_size, width, scale=width**0.5)
        tied = embed if config.tie_word_embeddings else None
        super().__init__(
            ctx,
            embed,
            [
                gemma3_layer(ctx, f"model.layers.{i}", config, full if window is None else sliding, window)
                for i, window in enumerate(config.windows)
            ],
            RMSNorm(ctx, "model.norm", width, config.rms_norm_eps, offset=1.0),
            LMHead(ctx, "lm_head", config.vocab_size, width, tied, soft_cap=config.final_logit_softcapping),
        )
