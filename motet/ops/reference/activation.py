"""Activations of feed-forward blocks: the definitions. Computed in float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from motet.core.registry import unsupported
from motet.ops.registry import OpSpec, Sample, define_op

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": torch.relu,
}
# Names that checkpoints use for the four above.
ACTIVATION_ALIASES = {
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}


def activation_name(name: str) -> str:
    """The op's name of a checkpoint's `hidden_act`. Raises UnsupportedError."""
    name = ACTIVATION_ALIASES.get(name, name)
    if name not in ACTIVATIONS:
        raise unsupported("activation", name, ACTIVATIONS)
    return name


def activation(x: Tensor, kind: str) -> Tensor:
    """x of any shape and dtype -> the same."""
    return ACTIVATIONS[kind](x.float()).to(x.dtype)


def activation_mul(gate_up: Tensor, kind: str) -> Tensor:
    """gate_up [T, 2 * I], gate first -> act(gate) * up, [T, I]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (ACTIVATIONS[kind](gate) * up).to(gate_up.dtype)


def _samples() -> list[Sample]:
    """Of every kind and dtype: small and large values, where exponentials vanish and overflow, odd widths."""
    generator = torch.Generator().manual_seed(0)
    values = torch.cat([torch.randn(3, 74, generator=generator) * 4, torch.linspace(-120, 120, 74).expand(2, 74)])
    return [
        Sample(f"{kind}-{dtype}".replace("torch.", ""), (values.to(dtype), kind))
        for kind in ACTIVATIONS
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]


# Far below zero, 1 + tanh of the definition of gelu cancels; a backend may be closer to the truth.
TOLERANCE = {torch.float32: (1e-5, 2e-5), torch.bfloat16: (2**-7, 2e-5), torch.float16: (2**-9, 2e-5)}

ACTIVATION = define_op(OpSpec("activation", activation, _samples, TOLERANCE))
ACTIVATION_MUL = define_op(OpSpec("activation_mul", activation_mul, _samples, TOLERANCE))
