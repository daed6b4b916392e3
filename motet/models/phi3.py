"""Phi-3, Phi-3.5, Phi-4-mini (Abdin et al. 2024): Llama with fused projections, and LongRoPE over a part of a head."""

from __future__ import annotations

from typing import Any

import msgspec

from motet.models.config import DecoderConfig, read_config
from motet.nn.attention import Attention, RopeTable
from motet.nn.context import BuildContext
from motet.nn.decoder import Decoder, PreNormLayer
from motet.nn.linear import Embedding, Linear, LMHead
from motet.nn.mlp import GatedMLP
from motet.nn.norm import RMSNorm
from motet.nn.rope import rope_parameters, rope_table


class Phi3Config(DecoderConfig, frozen=True, kw_only=True):
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096
    original_max_position_embeddings: int = 4096
    sliding_window: int | None = None


def phi3_layer(ctx: BuildContext, name: str, config: Phi3Config, rope: RopeTable) -> PreNormLayer:
    width, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
    shape, attn = config.attention_shape(), f"{name}.self_attn"
    return PreNormLayer(
        RMSNorm(ctx, f"{name}.input_layernorm", width, eps),
        Attention(
            ctx,
            attn,
            shape,
            Linear(ctx, f"{attn}.qkv_proj", width, sum(shape.qkv_widths)),
            Linear(ctx, f"{attn}.o_proj", shape.q_width, width),
            rope,
            config.sliding_window,
        ),
        RMSNorm(ctx, f"{name}.post_attention_layernorm", width, eps),
        GatedMLP(ctx, f"{name}.mlp", width, inner, config.hidden_act, fused=True),
    )


class Phi3ForCausalLM(Decoder):
    ignored_tensors = ("*.rotary_emb.inv_freq", "lm_head.weight")  # the latter where it only repeats the embedding

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        config = read_config(config_dict, Phi3Config)
        known = {**config_dict, "original_max_position_embeddings": config.original_max_position_embeddings}
        parameters = rope_parameters(known)
        if parameters.rope_type == "yarn":  # what Phi-3's LongRoPE was called at first
            parameters = msgspec.structs.replace(parameters, rope_type="longrope")
        rope = rope_table(parameters, config.head_size, ctx.max_model_len, config.max_position_embeddings)
        embed = Embedding(ctx, "model.embed_tokens", config.vocab_size, config.hidden_size)
        super().__init__(
            ctx,
            embed,
            [phi3_layer(ctx, f"model.layers.{i}", config, rope) for i in range(config.num_hidden_layers)],
            RMSNorm(ctx, "model.norm", config.hidden_size, config.rms_norm_eps),
            LMHead(
                ctx, "lm_head", config.vocab_size, config.hidden_size, embed if config.tie_word_embeddings else None
            ),
        )
