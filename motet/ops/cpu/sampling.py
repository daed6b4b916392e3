"""Drawing and describing tokens on the C++ kernels. Defined by motet.sampling, with the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.ops.cpu.target import Target

DRAW_DTYPES = [torch.int64, torch.float32, torch.float32, torch.int64, torch.float64, torch.int64]


def draw(
    target: Target,
    scores: Tensor,
    rows: Tensor,
    temperature: Tensor,
    log_min_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    keys: Tensor,
) -> Tensor:
    """Narrow the rows `rows` (int64 [N]) of scores (float32 [R, V]) and draw from each: int64 [N], -1 where the row
    over its temperature has no finite maximum.

    temperature, log_min_p: float32 [N]; top_k, keys: int64 [N]; top_p: float64 [N]. See motet.sampling.steps and draw.
    """
    scores = _checked(scores)
    parameters = (rows, temperature, log_min_p, top_k, top_p, keys)
    if [part.dtype for part in parameters] != DRAW_DTYPES or any(part.shape != rows.shape for part in parameters):
        found = [(part.dtype, list(part.shape)) for part in parameters]
        raise ValueError(f"rows and parameters must be {DRAW_DTYPES}, one for each row, got {found}")
    rows, temperature, log_min_p, top_k, top_p, keys = (part.contiguous() for part in parameters)
    token_ids = target.empty(rows, dtype=torch.int64)
    target.calls.draw(
        token_ids.data_ptr(),
        scores.data_ptr(),
        rows.data_ptr(),
        temperature.data_ptr(),
        log_min_p.data_ptr(),
        top_k.data_ptr(),
        top_p.data_ptr(),
        keys.data_ptr(),
        target.num_rows(rows),
        scores.shape[1],
    )
    return token_ids


def describe(
    target: Target, logits: Tensor, token_ids: Tensor, num_top: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of one token of each row, and of its num_top[r] likeliest.

    logits: float32 [R, V]; token_ids, num_top: int64 [R]; width: the greatest of num_top, at most V. Returns values
    float32 [R, 1 + width] and ids int64 [R, 1 + width], of which a row fills the first 1 + num_top[r], and ranks
    int64 [R]. See motet.sampling.logprobs.
    """
    logits = _checked(logits)
    token_ids, num_top = token_ids.contiguous(), num_top.contiguous()
    if any(part.dtype is not torch.int64 or part.shape != logits.shape[:1] for part in (token_ids, num_top)):
        raise ValueError(f"token_ids and num_top must be int64 [{len(logits)}]")
    if not 0 <= width <= logits.shape[1]:
        raise ValueError(f"width must be in [0, {logits.shape[1]}], got {width}")
    values = target.empty(logits, 1 + width, dtype=torch.float32)
    ids = target.empty(logits, 1 + width, dtype=torch.int64)
    ranks = target.empty(logits, dtype=torch.int64)
    target.calls.describe(
        values.data_ptr(),
        ids.data_ptr(),
        ranks.data_ptr(),
        logits.data_ptr(),
        token_ids.data_ptr(),
        num_top.data_ptr(),
        target.num_rows(logits),
        logits.shape[1],
        width,
    )
    return values, ids, ranks


def _checked(scores: Tensor) -> Tensor:
    if scores.dtype is not torch.float32 or scores.dim() != 2 or not scores.shape[1]:
        raise ValueError(f"scores must be float32 [R, V], got {scores.dtype} {list(scores.shape)}")
    return scores.contiguous()
