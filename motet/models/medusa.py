"""Medusa heads (Cai et al. 2024): each guesses one more token from a model's last hidden state."""

from __future__ import annotations

from typing import Any

import msgspec
from torch import Tensor

from motet.core.errors import UnsupportedError
from motet.models.config import read_config
from motet.nn.context import BuildContext
from motet.nn.linear import Linear, LMHead


class MedusaConfig(msgspec.Struct, frozen=True, kw_only=True):
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_hidden_layers: int = 1
    medusa_fc_bias: bool = False
    truncated_vocab_size: int | None = None


class ResidualBlock:
    """x + silu(linear(x)), some times over; tensors `name`.layers.0 and so on."""

    def __init__(self, ctx: BuildContext, name: str, config: MedusaConfig) -> None:
        self.ops, width = ctx.ops, config.hidden_size
        self.layers = [
            Linear(ctx, f"{name}.layers.{i}", width, width, config.medusa_fc_bias)
            for i in range(config.num_hidden_layers)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.ops.add(x, self.ops.activation(layer(x), "silu"))
        return x


class Medusa:
    """No decoder: it has no state and reads what another model's final norm gave."""

    ignored_tensors = ()

    def __init__(self, ctx: BuildContext, config_dict: dict[str, Any]) -> None:
        aliases = {"medusa_num_heads": "num_heads", "medusa_num_layers": "num_hidden_layers"}
        config = read_config(config_dict, MedusaConfig, **aliases)
        if config.truncated_vocab_size not in (None, config.vocab_size):
            raise UnsupportedError(
                f"Medusa heads over {config.truncated_vocab_size} of {config.vocab_size} tokens are not supported; "
                "take heads over the whole vocabulary"
            )
        self.width = config.hidden_size
        self.blocks = [ResidualBlock(ctx, f"blocks.{i}", config) for i in range(config.num_heads)]
        self.heads = [
            LMHead(ctx, f"lm_heads.{i}", config.vocab_size, config.hidden_size) for i in range(config.num_heads)
        ]

    def guess(self, index: int, hidden: Tensor) -> Tensor:
        """Scores float32 [L, V] for the token index + 2 places behind the one of each row of hidden [L, H]."""
        return self.heads[index](self.blocks[index](hidden))
