"""Qwen3-MoE (Yang et al. 2025): Qwen3 with experts in place of most feed-forward blocks."""

from __future__ import annotations

from typing import Any

import msgspec

from motet.models.config import DecoderConfig, read_config
from motet.nn.attention import Attention, RopeTable, split_projections
from motet.nn.context import BuildContext
from motet.nn.decoder import Decoder, PreNormLayer
from motet.nn.linear import Embedding, LMHead
from motet.nn.mlp import GatedMLP
from motet.nn.moe import MoE
from motet.nn.norm import RMSNorm
from motet.nn.rope import rope_parameters, rope_table


class Qwen3MoeConfig(DecoderConfig, frozen=True, kw_only=True):
    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] = msgspec.field(default_factory=list)

    def has_experts(self, layer: int) -> bool:
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0


def feed_forward(ctx: BuildContext, name: str, config: Qwen3MoeConfig, layer: int) -> MoE | GatedMLP:
    if not config.has_experts(layer):
        return GatedMLP(ctx, name, config.hidden_size, config.intermediate_size, config.hidden_act)
    return MoE(
        ctx,
        f"{name}.gate",
        f"{name}.experts",
        ("gate_proj", "up_proj", "down_proj"),
        config.hidden_size,
        config.moe_intermediate_size,
        config.num_experts,
        config.num_experts_per_tok,
        config.norm_topk_prob,
        config.hidden_act,
    )


def qwen3_moe_layer(ctx: BuildContext, layer: int, config: Qwen3MoeConfig, rope: RopeTable) -> PreNormLayer:
    name, width, eps = f"model.layers.{layer}", config.hidden_size, config.rms_norm_eps
    shape, attn = config.attention_shape(), f"{name}.self_attn"
    window = config.sliding_window if config.use_sliding_window else None
    qkv, out = split_projections(ctx, attn, shape, config.attention_bias, config.attention_bias)
    q_norm, k_norm = (RMSNorm(ctx, f"{attn}.{part}_norm", shape.head_size, eps) for part in "qk")
    return PreNormLayer(
        RMSNorm(ctx, f"{name}.input_layernorm", width, eps),
        Attention(ctx, attn, shape, qkv, out, rope, window, q_norm, k_norm),
        RMSNorm(ctx, f"{name}.post_attention_layernorm", width, eps),
        feed_forward(ctx, f"{name}.mlp", config, layer),
    )


class Qwen3MoeForCausalLM(Decoder):
    ignored_tensors = ("lm_head.weight",)  # where it only repeats the embedding

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        # transformers 5 writes the number of experts under Mixtral's name.
        config = read_config(config_dict, Qwen3MoeConfig, num_local_experts="num_experts")
        rope = rope_table(
            rope_parameters(config_dict), config.head_size, ctx.max_model_len, config.max_position_embeddings
        )
        embed = Embedding(ctx, "model.embed_tokens", config.vocab_size, config.hidden_size)
        super().__init__(
            ctx,
            embed,
            [qwen3_moe_layer(ctx, i, config, rope) for i in range(config.num_hidden_layers)],
            RMSNorm(ctx, "model.norm", config.hidden_size, config.rms_norm_eps),
            LMHead(
                ctx, "lm_head", config.vocab_size, config.hidden_size, embed if config.tie_word_embeddings else None
            ),
        )
