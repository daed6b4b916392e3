"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases everywhere, matrices stored transposed."""

from __future__ import annotations

from typing import Any

import msgspec
from torch import Tensor

from motet.models.config import read_config, require
from motet.nn.attention import Attention, AttentionShape
from motet.nn.context import BuildContext
from motet.nn.decoder import Decoder, PreNormLayer
from motet.nn.linear import Embedding, Linear, LMHead
from motet.nn.mlp import MLP
from motet.nn.norm import LayerNorm
from motet.tensors.forward import ForwardBatch

ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


class GPT2Config(msgspec.Struct, frozen=True, kw_only=True):
    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True

    def attention_scale(self, layer: int) -> float:
        scale = (self.n_embd // self.n_head) ** -0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


def gpt2_layer(ctx: BuildContext, prefix: str, config: GPT2Config, layer: int) -> PreNormLayer:
    name, width, eps = f"{prefix}h.{layer}", config.n_embd, config.layer_norm_epsilon
    shape = AttentionShape(width, config.n_head, config.n_head, width // config.n_head, config.attention_scale(layer))
    return PreNormLayer(
        LayerNorm(ctx, f"{name}.ln_1", width, eps),
        Attention(
            ctx,
            f"{name}.attn",
            shape,
            Linear(ctx, f"{name}.attn.c_attn", width, 3 * width, bias=True, transposed=True),
            Linear(ctx, f"{name}.attn.c_proj", width, width, bias=True, transposed=True),
        ),
        LayerNorm(ctx, f"{name}.ln_2", width, eps),
        MLP(
            ctx,
            f"{name}.mlp.c_fc",
            f"{name}.mlp.c_proj",
            width,
            config.n_inner or 4 * width,
            config.activation_function,
            transposed=True,
        ),
    )


class GPT2LMHeadModel(Decoder):
    # Causal masks that early checkpoints carry, and a head that only repeats the embedding.
    ignored_tensors = ("*h.*.attn.bias", "*h.*.attn.masked_bias", "lm_head.weight")

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        config = read_config(config_dict, GPT2Config, **ALIASES)
        require(config_dict, "add_cross_attention", False, None)
        prefix = "transformer." if ctx.weights.has("transformer.wte.weight") else ""
        width = config.n_embd
        self.positions = Embedding(ctx, f"{prefix}wpe", config.n_positions, width)
        embed = Embedding(ctx, f"{prefix}wte", config.vocab_size, width)
        super().__init__(
            ctx,
            embed,
            [gpt2_layer(ctx, prefix, config, i) for i in range(config.n_layer)],
            LayerNorm(ctx, f"{prefix}ln_f", width, config.layer_norm_epsilon),
            LMHead(ctx, "lm_head", config.vocab_size, width, embed if config.tie_word_embeddings else None),
        )

    def embed_batch(self, batch: ForwardBatch) -> Tensor:
        return self.ops.add(self.embed(batch.token_ids), self.positions(batch.positions))
