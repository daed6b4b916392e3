"""What happens to the logits before the draw: row-wise functions, and steps that touch only the rows that need it.

A step edits `logits` in place: float32 [W, V], one row per token to be chosen. `rows` are rows of `logits`; a step
that edits single entries names them by (`rows[n]`, `ids[n]`). No entry of a result depends on another row.

Order (as in vLLM): AllowOnly, FollowGrammar, Forbid (bad words), Forbid (min_tokens), AddBias, PenaliseRepetition,
PenaliseOutput; the token of a greedy row is chosen here; then Temperature, MinP, TopK, TopP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from motet.sampling.blocks import row_blocks
from motet.sampling.masses import masses
from motet.sampling.ranking import top_ids

NUCLEUS_WIDTH = 256  # top_p looks at so many tokens first, then at 16 times as many, until they hold the mass


def min_p(logits: Tensor, log_min_p: Tensor) -> Tensor:
    """Forbid tokens less likely than min_p times the likeliest. logits: float32 [R, V], log_min_p: float32 [R]."""
    gap = logits - logits.amax(dim=1, keepdim=True)
    return logits.masked_fill(gap < log_min_p[:, None], -torch.inf)


def top_k(logits: Tensor, k: Tensor) -> Tensor:
    """Forbid tokens below the k-th largest logit; its equals stay. logits: float32 [R, V]; k: int64 [R], at least 1."""
    k = k.clamp(max=logits.shape[1])
    largest = logits.topk(int(k.max()), dim=1).values
    return logits.masked_fill(logits < largest.gather(1, k[:, None] - 1), -torch.inf)


def top_p(logits: Tensor, p: Tensor) -> Tensor:
    """Forbid tokens whose betters already hold the mass p. logits: float32 [R, V], p: float64 [R], above 0.

    "Better" is the order of `top_ids`; masses are the integers of `masses`, and p is a share of their sum. Most rows
    are settled by their first NUCLEUS_WIDTH tokens, and only the others are sorted further.
    """
    vocab_size = logits.shape[1]
    shares = masses(logits)
    limit = p * shares.sum(dim=1)
    result = torch.full_like(logits, -torch.inf)
    rows, width = torch.arange(len(logits), device=logits.device), min(NUCLEUS_WIDTH, vocab_size)
    while True:
        some = logits[rows]
        ids = top_ids(some, width)
        mass = shares[rows].gather(1, ids).cumsum(dim=1).to(torch.float64)
        is_cut = torch.zeros_like(ids, dtype=torch.bool)
        is_cut[:, 1:] = mass[:, :-1] >= limit[rows, None]
        kept = some.gather(1, ids).masked_fill_(is_cut, -torch.inf)
        result[rows] = torch.full_like(some, -torch.inf).scatter_(1, ids, kept)
        rows = rows[mass[:, -1] < limit[rows]]
        if width == vocab_size or len(rows) == 0:
            return result
        width = min(16 * width, vocab_size)


class LogitsStep(Protocol):
    def apply(self, logits: Tensor) -> None:
        """Edit `logits` in place: float32 [W, V]."""


@dataclass(frozen=True)
class AllowOnly:
    """Forbid all but the named entries of `allowed_rows` (int64 [R]). rows, ids: int64 [N]."""

    allowed_rows: Tensor
    rows: Tensor
    ids: Tensor

    def apply(self, logits: Tensor) -> None:
        allowed = logits[self.rows, self.ids]
        logits[self.allowed_rows] = -torch.inf
        logits[self.rows, self.ids] = allowed


@dataclass(frozen=True)
class FollowGrammar:
    """rows: int64 [R]; masks: int32 [R, ceil(V / 32)], a cleared bit forbids its token, the lowest bit first."""

    rows: Tensor
    masks: Tensor

    def apply(self, logits: Tensor) -> None:
        vocab_size = logits.shape[1]
        for block in row_blocks(len(self.rows), vocab_size):
            bits = np.unpackbits(self.masks[block].numpy().view(np.uint8), axis=1, count=vocab_size, bitorder="little")
            logits[self.rows[block]] = logits[self.rows[block]].masked_fill(torch.from_numpy(bits) == 0, -torch.inf)


@dataclass(frozen=True)
class Forbid:
    """rows, ids: int64 [N]."""

    rows: Tensor
    ids: Tensor

    def apply(self, logits: Tensor) -> None:
        logits[self.rows, self.ids] = -torch.inf


@dataclass(frozen=True)
class AddBias:
    """rows, ids: int64 [N], every entry once; bias: float32 [N]."""

    rows: Tensor
    ids: Tensor
    bias: Tensor

    def apply(self, logits: Tensor) -> None:
        logits[self.rows, self.ids] += self.bias


@dataclass(frozen=True)
class PenaliseRepetition:
    """Divide positive logits of seen tokens by the penalty and multiply the others (Keskar et al., "CTRL", 2019).

    rows, ids: int64 [N], an entry may come often and counts once; penalty: float32 [N].
    """

    rows: Tensor
    ids: Tensor
    penalty: Tensor

    def apply(self, logits: Tensor) -> None:
        old = logits[self.rows, self.ids]
        logits[self.rows, self.ids] = torch.where(old > 0, old / self.penalty, old * self.penalty)


@dataclass(frozen=True)
class PenaliseOutput:
    """Subtract frequency_penalty * count, then presence_penalty, from the logits of tokens in the output.

    rows, ids: int64 [N], every entry once; by_count: float32 [N], already multiplied; presence: float32 [N].
    """

    rows: Tensor
    ids: Tensor
    by_count: Tensor
    presence: Tensor

    def apply(self, logits: Tensor) -> None:
        logits[self.rows, self.ids] = logits[self.rows, self.ids] - self.by_count - self.presence


@dataclass(frozen=True)
class Temperature:
    """Of every row. temperature: float32 [W], above 0."""

    temperature: Tensor

    def apply(self, logits: Tensor) -> None:
        logits /= self.temperature[:, None]


@dataclass(frozen=True)
class MinP:
    """rows: int64 [R]; log_min_p: float32 [R]."""

    rows: Tensor
    log_min_p: Tensor

    def apply(self, logits: Tensor) -> None:
        for block in row_blocks(len(self.rows), logits.shape[1]):
            logits[self.rows[block]] = min_p(logits[self.rows[block]], self.log_min_p[block])


@dataclass(frozen=True)
class TopK:
    """rows, k: int64 [R]."""

    rows: Tensor
    k: Tensor

    def apply(self, logits: Tensor) -> None:
        for block in row_blocks(len(self.rows), logits.shape[1]):
            logits[self.rows[block]] = top_k(logits[self.rows[block]], self.k[block])


@dataclass(frozen=True)
class TopP:
    """rows: int64 [R]; p: float64 [R]."""

    rows: Tensor
    p: Tensor

    def apply(self, logits: Tensor) -> None:
        for block in row_blocks(len(self.rows), logits.shape[1]):
            logits[self.rows[block]] = top_p(logits[self.rows[block]], self.p[block])
