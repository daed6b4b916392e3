"""Mixtral (Jiang et al. 2024): Mistral with 2 of 8 experts in place of each feed-forward block."""

from __future__ import annotations

from typing import Any

from motet.models.config import DecoderConfig, read_config
from motet.nn.attention import Attention, RopeTable, split_projections
from motet.nn.context import BuildContext
from motet.nn.decoder import Decoder, PreNormLayer
from motet.nn.linear import Embedding, LMHead
from motet.nn.moe import MoE
from motet.nn.norm import RMSNorm
from motet.nn.rope import rope_parameters, rope_table


class MixtralConfig(DecoderConfig, frozen=True, kw_only=True):
    num_key_value_heads: int | None = 8
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 131072
    sliding_window: int | None = None
    num_local_experts: int
    num_experts_per_tok: int = 2


def experts(ctx: BuildContext, name: str, config: MixtralConfig) -> MoE:
    # Checkpoints whose experts are one tensor call the block `mlp`.
    block = f"{name}.mlp" if ctx.weights.has(f"{name}.mlp.gate.weight") else f"{name}.block_sparse_moe"
    return MoE(
        ctx,
        f"{block}.gate",
        f"{block}.experts",
        ("w1", "w3", "w2"),
        config.hidden_size,
        config.intermediate_size,
        config.num_local_experts,
        config.num_experts_per_tok,
        renormalize=True,
        act=config.hidden_act,
    )


def mixtral_layer(ctx: BuildContext, name: str, config: MixtralConfig, rope: RopeTable) -> PreNormLayer:
    width, eps = config.hidden_size, config.rms_norm_eps
    shape, attn = config.attention_shape(), f"{name}.self_attn"
    qkv, out = split_projections(ctx, attn, shape)
    return PreNormLayer(
        RMSNorm(ctx, f"{name}.input_layernorm", width, eps),
        Attention(ctx, attn, shape, qkv, out, rope, config.sliding_window),
        RMSNorm(ctx, f"{name}.post_attention_layernorm", width, eps),
        experts(ctx, name, config),
    )


class MixtralForCausalLM(Decoder):
    ignored_tensors = ("*.rotary_emb.inv_freq", "lm_head.weight")  # the latter where it only repeats the embedding

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        config = read_config(config_dict, MixtralConfig, num_experts="num_local_experts")
        parameters = rope_parameters(config_dict, default_theta=1e6)
        rope = rope_table(parameters, config.head_size, ctx.max_model_len, config.max_position_embeddings)
        embed = Embedding(ctx, "model.embed_tokens", config.vocab_size, config.hidden_size)
        super().__init__(
            ctx,
            embed,
            [mixtral_layer(ctx, f"model.layers.{i}", config, rope) for i in range(config.num_hidden_layers)],
            RMSNorm(ctx, "model.norm", config.hidden_size, config.rms_norm_eps),
            LMHead(
                ctx, "lm_head", config.vocab_size, config.hidden_size, embed if config.tie_word_embeddings else None
            ),
        )
