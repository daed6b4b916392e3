"""The frame that decoder-only models share: embed, layers, norm, head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from motet.nn.attention import Attention
from motet.nn.context import BuildContext
from motet.nn.linear import Embedding, LMHead
from motet.nn.mlp import GatedMLP
from motet.nn.norm import LayerNorm, RMSNorm
from motet.tensors.forward import AdapterRows, ForwardBatch
from motet.tensors.states import States


class Layer(Protocol):
    def __call__(self, hidden: Tensor, batch: ForwardBatch, states: States) -> Tensor: ...


class FeedForward(Protocol):
    def __call__(self, x: Tensor, residual: Tensor, adapters: AdapterRows) -> Tensor: ...


class PreNormLayer:
    """Attention and feed-forward each read the normed stream and are added to the stream (Xiong et al. 2020)."""

    def __init__(
        self,
        attention_norm: RMSNorm | LayerNorm,
        attention: Attention,
        feed_forward_norm: RMSNorm | LayerNorm,
        feed_forward: FeedForward,
    ) -> None:
        self.attention_norm, self.attention = attention_norm, attention
        self.feed_forward_norm, self.feed_forward = feed_forward_norm, feed_forward

    def __call__(self, hidden: Tensor, batch: ForwardBatch, states: States) -> Tensor:
        hidden = self.attention(self.attention_norm(hidden), batch, states, residual=hidden)
        return self.feed_forward(self.feed_forward_norm(hidden), hidden, batch.adapters)


class SandwichLayer:
    """As PreNormLayer, with a norm also behind each block, before it is added (Ding et al. 2021)."""

    def __init__(
        self,
        ctx: BuildContext,
        attention_norm: RMSNorm,
        attention: Attention,
        after_attention_norm: RMSNorm,
        feed_forward_norm: RMSNorm,
        feed_forward: GatedMLP,
        after_feed_forward_norm: RMSNorm,
    ) -> None:
        self.ops = ctx.ops
        self.attention_norm, self.attention = attention_norm, attention
        self.after_attention_norm = after_attention_norm
        self.feed_forward_norm, self.feed_forward = feed_forward_norm, feed_forward
        self.after_feed_forward_norm = after_feed_forward_norm

    def __call__(self, hidden: Tensor, batch: ForwardBatch, states: States) -> Tensor:
        mixed = self.attention(self.attention_norm(hidden), batch, states)
        hidden = self.ops.add(hidden, self.after_attention_norm(mixed))
        mixed = self.feed_forward(self.feed_forward_norm(hidden), adapters=batch.adapters)
        return self.ops.add(hidden, self.after_feed_forward_norm(mixed))


class Decoder:
    """Runs `layers` one after another; a subclass builds them and may replace `embed_batch`."""

    def __init__(
        self,
        ctx: BuildContext,
        embed: Embedding,
        layers: Sequence[Layer],
        norm: RMSNorm | LayerNorm,
        head: LMHead,
    ) -> None:
        self.ops = ctx.ops
        self.embed, self.layers, self.norm, self.head = embed, layers, norm, head

    def embed_batch(self, batch: ForwardBatch) -> Tensor:
        return self.embed(batch.token_ids)

    def forward(self, batch: ForwardBatch, states: States) -> Tensor:
        """The hidden states [T, H] of the step's tokens, before the final norm."""
        hidden = self.embed_batch(batch)
        for layer in self.layers:
            hidden = layer(hidden, batch, states)
        return hidden

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """hidden [T, H] at rows int64 [L] -> float32 [L, V]."""
        return self.head(self.last_hidden(hidden, rows))

    def last_hidden(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """hidden [T, H] at rows int64 [L], behind the final norm."""
        return self.norm(self.ops.select_rows(hidden, rows))
