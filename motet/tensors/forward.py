"""What one forward pass reads. The runner builds it, nobody changes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AdapterRows:
    """The A tokens of a step that have an adapter, sorted by slot: int64 [A], and int32 [A], the slots, from 0 on."""

    tokens: Tensor
    slots: Tensor

    @classmethod
    def of(cls, token_slots: IntArray) -> AdapterRows:
        """token_slots: [T], from 1 on, 0 without an adapter."""
        order = token_slots.argsort(kind="stable")
        tokens = order[np.count_nonzero(token_slots == 0) :]
        return cls(torch.from_numpy(tokens), torch.from_numpy((token_slots[tokens] - 1).astype(np.int32)))


NO_ADAPTERS = AdapterRows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))


@dataclass(frozen=True)
class ForwardBatch:
    """T tokens of R requests, request after request.

    token_ids, positions: int64 [T]
    logit_rows: int64 [L], the tokens whose next token is sampled
    attention: per state group what the attention backend's `plan_step` made of the step
    """

    token_ids: Tensor
    positions: Tensor
    logit_rows: Tensor
    attention: tuple[Any, ...]
    adapters: AdapterRows = NO_ADAPTERS

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]


@dataclass(frozen=True)
class StepLayout:
    """How the T tokens of a step belong to its R rows, row after row.

    starts, counts, firsts: [R]; positions [start, start + count) are computed, the first of them is token `first`
    token_rows, positions: [T], of each token
    end: the largest start + count
    """

    starts: IntArray
    counts: IntArray
    firsts: IntArray
    token_rows: IntArray
    positions: IntArray
    end: int

    @classmethod
    def of(cls, starts: npt.ArrayLike, counts: npt.ArrayLike) -> StepLayout:
        """Raises ValueError where a row has no token."""
        starts, counts = np.asarray(starts, np.int64), np.asarray(counts, np.int64)
        if counts.min(initial=1) < 1:
            raise ValueError(f"every row needs a token, got {counts.tolist()}")
        end = int((starts + counts).max(initial=0))
        firsts = np.arange(len(counts))
        if int(counts.sum()) == len(counts):  # the small steps of decoding, which each call here would hold up
            return cls(starts, counts, firsts, firsts, starts, end)
        token_rows = firsts.repeat(counts)
        firsts = counts.cumsum() - counts
        return cls(starts, counts, firsts, token_rows, np.arange(len(token_rows)) + (starts - firsts)[token_rows], end)


def last_of_each(ends: IntArray, counts: IntArray) -> IntArray:
    """The numbers end - count to end - 1 of every pair, one after the other: [sum of counts]."""
    if int(counts.sum()) == len(counts) and int(counts.min(initial=1)) == 1:  # the most frequent case by far
        return ends - 1
    pairs = np.arange(len(counts)).repeat(counts)
    return np.arange(len(pairs)) + (ends - counts.cumsum())[pairs]


@dataclass(frozen=True)
class StepRows:
    """The rows of a step in one state group, as an attention backend needs them to plan.

    block_table: int32 [R, max_blocks] on the host; entry 0 is the null block
    """

    layout: StepLayout
    block_table: npt.NDArray[np.int32]
    block_size: int
    window: int | None


@dataclass(frozen=True)
class ForwardOutput:
    """hidden [T, H] before the final norm, and float32 logits [L, V] of `ForwardBatch.logit_rows`."""

    hidden: Tensor
    logits: Tensor
