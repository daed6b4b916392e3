"""The ops that models are made of, as one object.

A backend is handed to the model when it is built; models call nothing else. `ReferenceOps` is the definition in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from motet.ops.reference import activation as _activation
from motet.ops.reference import layer_norm as _layer_norm
from motet.ops.reference import linear as _linear
from motet.ops.reference import moe as _moe
from motet.ops.reference import norm as _norm
from motet.ops.reference import rope as _rope


class ReferenceOps:
    """Each method's contract is the docstring of the function of the same name in `motet.ops.reference`.

    The matrices of `linear`, `logits`, `embedding` and `moe` are first given to `pack_linear`, so that a backend can
    keep a layout of its own.
    """

    name = "reference"

    @staticmethod
    def pack_linear(weight: Tensor) -> Any:
        """weight [N, K] -> what this backend's ops take in its place. Called once per weight, at load."""
        return weight

    # Their weights are what `pack_linear` gives, another type with each backend.
    linear: Callable[..., Tensor] = staticmethod(_linear.linear)
    logits: Callable[..., Tensor] = staticmethod(_linear.logits)
    embedding: Callable[..., Tensor] = staticmethod(_linear.embedding)
    select_rows = staticmethod(_linear.select_rows)
    add = staticmethod(_linear.add)
    rms_norm = staticmethod(_norm.rms_norm)
    layer_norm = staticmethod(_layer_norm.layer_norm)
    activation = staticmethod(_activation.activation)
    activation_mul = staticmethod(_activation.activation_mul)
    qkv_heads = staticmethod(_rope.qkv_heads)
    moe = staticmethod(_moe.moe)
