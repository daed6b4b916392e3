"""The first k of a row in one strict order: larger value first, lower id first among equals.

torch.topk leaves the order of equals open, and it changes with k; logits that were computed in bfloat16 have many.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOW_BITS = 2**32 - 1


def top_ids(values: Tensor, k: int) -> Tensor:
    """values: float32 [R, V], no NaN; k in [1, V]. Returns int64 [R, k]: the ids of the first k, in order.

    Value and id are packed into one integer, so that no two entries of a row are equal.
    """
    bits = (values + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    ascending = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)  # signed integers in the order of the floats
    packed = ascending.to(torch.int64).mul_(2**32)
    packed += LOW_BITS - torch.arange(values.shape[1], device=values.device)
    return LOW_BITS - (packed.topk(k, dim=1).values & LOW_BITS)
