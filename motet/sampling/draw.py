"""The draw: one token per row from a softmax, by the Gumbel-max trick.

Definition, for a row x of scores and its key:  argmax over lanes of  (double(x) - double(max x)) + noise(key, lane),
the lowest lane among equals. It needs no sum over the row, so nothing about it depends on how a row is split.
"""

from __future__ import annotations

import torch
from torch import Tensor

from motet.sampling.blocks import row_blocks
from motet.sampling.noise import exponentials, gumbels, uniforms

SLACK = 1.001  # covers the float32 rounding of `probs`
NEVER = 1e-24  # a probability that cannot win in any vocabulary: below p(m) * 2**-53 / 37, see `_draw_block`
FEW = 8  # below one lane in so many, noise is made for the live lanes only


def draw(scores: Tensor, keys: Tensor) -> Tensor:
    """Draw from softmax(scores) row by row.

    scores: float32 [R, V], -inf where a token is forbidden. keys: int64 [R] from `stream_keys`. Returns int64 [R], -1
    where a row has no finite maximum.
    """
    num_rows, vocab_size = scores.shape
    token_ids = keys.new_full((num_rows,), -1)
    for rows in row_blocks(num_rows, vocab_size):
        token_ids[rows] = _draw_block(scores[rows], keys[rows])
    return token_ids


def _draw_block(scores: Tensor, keys: Tensor) -> Tensor:
    """Find the few lanes that can win by a bound that needs no logarithm, then compare those exactly.

    With E = -log(u), lane i beats the row's most likely lane m only if E_i <= E_m * p(i) / p(m). As 1 - u <= E, a
    lane with 1 - u above that is out; about 1 / p(m) lanes are left. u >= 2**-53 and 2**-53 <= E <= 37.
    """
    num_rows, vocab_size = scores.shape
    peak, best_lane = scores.max(dim=1)
    probs = scores.softmax(dim=1)
    is_live = probs > NEVER
    reach = exponentials(uniforms(keys, best_lane)).to(torch.float32) * SLACK
    bound = probs * (reach / probs.gather(1, best_lane[:, None]).squeeze(1))[:, None]
    if int(is_live.count_nonzero()) * FEW < scores.numel():
        row, lane = is_live.nonzero(as_tuple=True)
        may_win = 1.0 - uniforms(keys[row], lane) <= bound[row, lane]
        row, lane = row[may_win], lane[may_win]
    else:
        u = uniforms(keys[:, None], torch.arange(vocab_size, device=keys.device))
        row, lane = (1.0 - u <= bound).nonzero(as_tuple=True)
    total = (scores[row, lane].to(torch.float64) - peak.to(torch.float64)[row]) + gumbels(uniforms(keys[row], lane))
    best = total.new_full((num_rows,), -torch.inf).scatter_reduce_(0, row, total, "amax")
    is_best = total == best[row]
    winner = lane.new_full((num_rows,), vocab_size).scatter_reduce_(0, row[is_best], lane[is_best], "amin")
    return torch.where(winner < vocab_size, winner, -1)
