"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama's shape, with biases on q, k and v and a window in upper layers."""

from __future__ import annotations

from typing import Any

from motet.models.config import DecoderConfig, layer_windows, read_config, windows_above
from motet.nn.attention import Attention, RopeTable, split_projections
from motet.nn.context import BuildContext
from motet.nn.decoder import Decoder, PreNormLayer
from motet.nn.linear import Embedding, LMHead
from motet.nn.mlp import GatedMLP
from motet.nn.norm import RMSNorm
from motet.nn.rope import rope_parameters, rope_table


class Qwen2Config(DecoderConfig, frozen=True, kw_only=True):
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    @property
    def windows(self) -> list[int | None]:
        window = self.sliding_window if self.use_sliding_window else None
        types = self.layer_types or windows_above(self.max_window_layers, self.num_hidden_layers, window)
        return layer_windows(types, self.num_hidden_layers, window)


def qwen2_layer(ctx: BuildContext, name: str, config: Qwen2Config, rope: RopeTable, window: int | None) -> PreNormLayer:
    width, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
    shape, attn = config.attention_shape(), f"{name}.self_attn"
    qkv, out = split_projections(ctx, attn, shape, qkv_bias=True)
    return PreNormLayer(
        RMSNorm(ctx, f"{name}.input_layernorm", width, eps),
        Attention(ctx, attn, shape, qkv, out, rope, window),
        RMSNorm(ctx, f"{name}.post_attention_layernorm", width, eps),
        GatedMLP(ctx, f"{name}.mlp", width, inner, config.hidden_act),
    )


class Qwen2ForCausalLM(Decoder):
    ignored_tensors = ("*.rotary_emb.inv_freq", "lm_head.weight")  # the latter where it only repeats the embedding

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        config = read_config(config_dict, Qwen2Config)
        rope = rope_table(
            rope_parameters(config_dict), config.head_size, ctx.max_model_len, config.max_position_embeddings
        )
        embed = Embedding(ctx, "model.embed_tokens", config.vocab_size, config.hidden_size)
        super().__init__(
            ctx,
            embed,
            [qwen2_layer(ctx, f"model.layers.{i}", config, rope, window) for i, window in enumerate(config.windows)],
            RMSNorm(ctx, "model.norm", config.hidden_size, config.rms_norm_eps),
            LMHead(
                ctx, "lm_head", config.vocab_size, config.hidden_size, embed if config.tie_word_embeddings else None
            ),
        )
