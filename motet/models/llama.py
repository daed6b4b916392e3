"""Llama (Touvron et al. 2023) and its likes: SmolLM2, TinyLlama, Mistral (Jiang et al. 2023) with its window."""

from __future__ import annotations

from typing import Any

from motet.models.config import DecoderConfig, read_config
from motet.nn.attention import Attention, RopeTable, split_projections
from motet.nn.context import BuildContext
from motet.nn.decoder import Decoder, PreNormLayer
from motet.nn.linear import Embedding, LMHead
from motet.nn.mlp import GatedMLP
from motet.nn.norm import RMSNorm
from motet.nn.rope import rope_parameters, rope_table


class LlamaConfig(DecoderConfig, frozen=True, kw_only=True):
    mlp_bias: bool = False

    @property
    def window(self) -> int | None:
        return None


class MistralConfig(LlamaConfig, frozen=True, kw_only=True):
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096

    @property
    def window(self) -> int | None:
        return self.sliding_window


def llama_layer(ctx: BuildContext, name: str, config: LlamaConfig, rope: RopeTable) -> PreNormLayer:
    width, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
    shape, attn = config.attention_shape(), f"{name}.self_attn"
    qkv, out = split_projections(ctx, attn, shape, config.attention_bias, config.attention_bias)
    return PreNormLayer(
        RMSNorm(ctx, f"{name}.input_layernorm", width, eps),
        Attention(ctx, attn, shape, qkv, out, rope, config.window),
        RMSNorm(ctx, f"{name}.post_attention_layernorm", width, eps),
        GatedMLP(ctx, f"{name}.mlp", width, inner, config.hidden_act, config.mlp_bias),
    )


class LlamaForCausalLM(Decoder):
    config_type: type[LlamaConfig] = LlamaConfig
    ignored_tensors = ("*.rotary_emb.inv_freq", "lm_head.weight")  # the latter where it only repeats the embedding

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        config = read_config(config_dict, self.config_type)
        rope = rope_table(
            rope_parameters(config_dict), config.head_size, ctx.max_model_len, config.max_position_embeddings
        )
        embed = Embedding(ctx, "model.embed_tokens", config.vocab_size, config.hidden_size)
        super().__init__(
            ctx,
            embed,
            [llama_layer(ctx, f"model.layers.{i}", config, rope) for i in range(config.num_hidden_layers)],
            RMSNorm(ctx, "model.norm", config.hidden_size, config.rms_norm_eps),
            LMHead(
                ctx, "lm_head", config.vocab_size, config.hidden_size, embed if config.tie_word_embeddings else None
            ),
        )


class MistralForCausalLM(LlamaForCausalLM):
    config_type = MistralConfig
