"""The ops that models are made of, as one object.

A backend is handed to the model when it is built; models call nothing else. `ReferenceOps` is the definition in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from motet.ops.reference import activation as _activation
from motet.ops.reference import greedy as _greedy
from motet.ops.reference import layer_norm as _layer_norm
from motet.ops.reference import linear as _linear
from motet.ops.reference import lora as _lora
from motet.ops.reference import moe as _moe
from motet.ops.reference import norm as _norm
from motet.ops.reference import rope as _rope


class ReferenceOps:
    """Each method's contract is the docstring of the function of the same name in `motet.ops.reference`.

    The matrices of `linear`, `logits`, `embedding` and `moe` are first given to `pack_linear`, and those of a layer's
    experts then to `pack_experts`, so that a backend can keep a layout of its own.
    """

    name = "reference"

    # Called once for each weight, at load.
    pack_linear: Callable[..., Any] = staticmethod(_linear.pack_linear)
    pack_experts: Callable[..., Any] = staticmethod(list)

    def __init__(self) -> None:
        # Their weights are what `pack_linear` gives, another type with each backend.
        self.linear: Callable[..., Tensor] = _linear.linear
        self.logits: Callable[..., Tensor] = _linear.logits
        self.embedding: Callable[..., Tensor] = _linear.embedding
        self.moe: Callable[..., Tensor] = _moe.moe
        self.lora: Callable[..., Tensor] = _lora.lora
        self.select_rows: Callable[[Tensor, Tensor], Tensor] = _linear.select_rows
        self.add: Callable[[Tensor, Tensor], Tensor] = _linear.add
        self.rms_norm: Callable[[Tensor, Tensor, float], Tensor] = _norm.rms_norm
        self.layer_norm: Callable[[Tensor, Tensor, Tensor | None, float], Tensor] = _layer_norm.layer_norm
        self.activation: Callable[[Tensor, str], Tensor] = _activation.activation
        self.activation_mul: Callable[[Tensor, str], Tensor] = _activation.activation_mul
        self.greedy: Callable[[Tensor], Tensor] = _greedy.greedy
        self.qkv_heads: Callable[..., tuple[Tensor, Tensor, Tensor]] = _rope.qkv_heads
