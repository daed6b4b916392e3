"""OLMo 2 (OLMo team 2024): norms behind the blocks in place of before them, and over all heads of q and k together."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from motet.models.config import DecoderConfig, read_config
from motet.nn.attention import Attention, RopeTable, split_projections
from motet.nn.context import BuildContext
from motet.nn.decoder import Decoder
from motet.nn.linear import Embedding, LMHead
from motet.nn.mlp import GatedMLP
from motet.nn.norm import RMSNorm
from motet.nn.rope import rope_parameters, rope_table
from motet.tensors.forward import ForwardBatch
from motet.tensors.states import States


class Olmo2Config(DecoderConfig, frozen=True, kw_only=True):
    rms_norm_eps: float = 1e-5


class Olmo2Layer:
    def __init__(self, ctx: BuildContext, name: str, config: Olmo2Config, rope: RopeTable) -> None:
        width, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        shape, attn = config.attention_shape(), f"{name}.self_attn"
        qkv, out = split_projections(ctx, attn, shape, config.attention_bias, config.attention_bias)
        q_norm = RMSNorm(ctx, f"{attn}.q_norm", shape.q_width, eps)
        k_norm = RMSNorm(ctx, f"{attn}.k_norm", shape.kv_width, eps)
        self.ops = ctx.ops
        self.attention = Attention(ctx, attn, shape, qkv, out, rope, q_norm=q_norm, k_norm=k_norm)
        self.attention_norm = RMSNorm(ctx, f"{name}.post_attention_layernorm", width, eps)
        self.mlp = GatedMLP(ctx, f"{name}.mlp", width, inner, config.hidden_act)
        self.mlp_norm = RMSNorm(ctx, f"{name}.post_feedforward_layernorm", width, eps)

    def __call__(self, hidden: Tensor, batch: ForwardBatch, states: States) -> Tensor:
        hidden = self.ops.add(hidden, self.attention_norm(self.attention(hidden, batch, states)))
        return self.ops.add(hidden, self.mlp_norm(self.mlp(hidden, adapters=batch.adapters)))


class Olmo2ForCausalLM(Decoder):
    ignored_tensors = ("*.rotary_emb.inv_freq", "lm_head.weight")  # the latter where it only repeats the embedding

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        config = read_config(config_dict, Olmo2Config)
        rope = rope_table(
            rope_parameters(config_dict), config.head_size, ctx.max_model_len, config.max_position_embeddings
        )
        embed = Embedding(ctx, "model.embed_tokens", config.vocab_size, config.hidden_size)
        super().__init__(
            ctx,
            embed,
            [Olmo2Layer(ctx, f"model.layers.{i}", config, rope) for i in range(config.num_hidden_layers)],
            RMSNorm(ctx, "model.norm", config.hidden_size, config.rms_norm_eps),
            LMHead(
                ctx, "lm_head", config.vocab_size, config.hidden_size, embed if config.tie_word_embeddings else None
            ),
        )
