"""Layer normalisation: the definition."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm (Ba et al. 2016) over the last dimension of x [T, H] in float32, rounded once.

    weight, bias: float32 [H].
    """
    return F.layer_norm(x.float(), (x.shape[-1],), weight, bias, eps).to(x.dtype)
