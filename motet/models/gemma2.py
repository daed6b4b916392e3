"""Gemma 2 (Gemma team 2024): windows in every second layer, soft caps, and norms on both sides of each block."""

from __future__ import annotations

from functools import partial
from typing import Any

from motet.models.config import DecoderConfig, layer_windows, read_config, windows_between
from motet.nn.attention import Attention, RopeTable, split_projections
from motet.nn.context import BuildContext
from motet.nn.decoder import Decoder, SandwichLayer
from motet.nn.linear import Embedding, LMHead
from motet.nn.mlp import GatedMLP
from motet.nn.norm import RMSNorm
from motet.nn.rope import rope_parameters, rope_table


class Gemma2Config(DecoderConfig, frozen=True, kw_only=True):
    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: float = 256
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None

    @property
    def windows(self) -> list[int | None]:
        types = self.layer_types or windows_between(2, self.num_hidden_layers)
        return layer_windows(types, self.num_hidden_layers, self.sliding_window)


def gemma2_layer(
    ctx: BuildContext, name: str, config: Gemma2Config, rope: RopeTable, window: int | None
) -> SandwichLayer:
    norm = partial(RMSNorm, ctx, width=config.hidden_size, eps=config.rms_norm_eps, offset=1.0)
    shape = config.attention_shape(config.query_pre_attn_scalar**-0.5, config.attn_logit_softcapping)
    attn = f"{name}.self_attn"
    qkv, out = split_projections(ctx, attn, shape, config.attention_bias, config.attention_bias)
    return SandwichLayer(
        ctx,
        norm(f"{name}.input_layernorm"),
        Attention(ctx, attn, shape, qkv, out, rope, window),
        norm(f"{name}.post_attention_layernorm"),
        norm(f"{name}.pre_feedforward_layernorm"),
        GatedMLP(ctx, f"{name}.mlp", config.hidden_size, config.intermediate_size, config.hidden_activation),
        norm(f"{name}.post_feedforward_layernorm"),
    )


class Gemma2ForCausalLM(Decoder):
    ignored_tensors = ("*.rotary_emb.inv_freq", "lm_head.weight")  # the latter where it only repeats the embedding

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        config = read_config(config_dict, Gemma2Config)
        width = config.hidden_size
        rope = rope_table(
            rope_parameters(config_dict), config.head_size, ctx.max_model_len, config.max_position_embeddings
        )
        embed = Embedding(ctx, "model.embed_tokens", config.vocab_size, width, scale=width**0.5)
        tied = embed if config.tie_word_embeddings else None
        super().__init__(
            ctx,
            embed,
            [gemma2_layer(ctx, f"model.layers.{i}", config, rope, window) for i, window in enumerate(config.windows)],
            RMSNorm(ctx, "model.norm", width, config.rms_norm_eps, offset=1.0),
            LMHead(ctx, "lm_head", config.vocab_size, width, tied, soft_cap=config.final_logit_softcapping),
        )
