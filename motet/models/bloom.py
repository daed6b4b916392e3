"""BLOOM (BigScience 2022): ALiBi in place of positions, a LayerNorm behind the embedding, q, k and v interleaved."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import Tensor

from motet.models.config import read_config, require
from motet.nn.attention import Attention, AttentionShape, alibi_slopes
from motet.nn.context import BuildContext
from motet.nn.decoder import Decoder, PreNormLayer
from motet.nn.linear import Embedding, Linear, LMHead
from motet.nn.mlp import MLP
from motet.nn.norm import LayerNorm
from motet.tensors.forward import ForwardBatch


class BloomConfig(msgspec.Struct, frozen=True, kw_only=True):
    vocab_size: int
    hidden_size: int
    n_layer: int
    n_head: int
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True


def side_by_side(num_heads: int, head_size: int) -> Tensor:
    """Rows of a matrix stored as [heads, (q, k, v), head_size] in the order q, k, v of all heads. int64 [3 * H]."""
    return torch.arange(num_heads * 3 * head_size).view(num_heads, 3, head_size).transpose(0, 1).reshape(-1)


def bloom_layer(ctx: BuildContext, name: str, config: BloomConfig, slopes: Tensor) -> PreNormLayer:
    width, heads, eps = config.hidden_size, config.n_head, config.layer_norm_epsilon
    attn, order = f"{name}.self_attention", side_by_side(heads, width // heads)
    return PreNormLayer(
        LayerNorm(ctx, f"{name}.input_layernorm", width, eps),
        Attention(
            ctx,
            attn,
            AttentionShape(width, heads, heads, width // heads),
            Linear(ctx, f"{attn}.query_key_value", width, 3 * width, bias=True, order=order),
            Linear(ctx, f"{attn}.dense", width, width, bias=True),
            alibi_slopes=slopes,
        ),
        LayerNorm(ctx, f"{name}.post_attention_layernorm", width, eps),
        MLP(ctx, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h", width, 4 * width, "gelu_tanh"),
    )


class BloomForCausalLM(Decoder):
    ignored_tensors = ("lm_head.weight",)  # where it only repeats the embedding

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        require(config_dict, "apply_residual_connection_post_layernorm", False, None)
        names = {"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
        config = read_config(config_dict, BloomConfig, **names)
        width, eps, slopes = config.hidden_size, config.layer_norm_epsilon, alibi_slopes(config.n_head)
        prefix = "transformer." if ctx.weights.has("transformer.word_embeddings.weight") else ""
        embed = Embedding(ctx, f"{prefix}word_embeddings", config.vocab_size, width)
        self.embed_norm = LayerNorm(ctx, f"{prefix}word_embeddings_layernorm", width, eps)
        super().__init__(
            ctx,
            embed,
            [bloom_layer(ctx, f"{prefix}h.{i}", config, slopes) for i in range(config.n_layer)],
            LayerNorm(ctx, f"{prefix}ln_f", width, eps),
            LMHead(ctx, "lm_head", config.vocab_size, width, embed if config.tie_word_embeddings else None),
        )

    def embed_batch(self, batch: ForwardBatch) -> Tensor:
        return self.embed_norm(self.embed(batch.token_ids))
