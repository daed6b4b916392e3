"""What one forward pass reads. The runner builds it, nobody changes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


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

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]


@dataclass(frozen=True)
class StepRows:
    """The rows of a step in one state group, as an attention backend needs them to plan.

    starts, num_tokens: int per row, positions [start, start + num_tokens) are computed
    block_table: int32 [R, max_blocks] on the host; entry 0 is the null block
    """

    starts: list[int]
    num_tokens: list[int]
    block_table: Tensor
    block_size: int
    window: int | None


@dataclass(frozen=True)
class ForwardOutput:
    """hidden [T, H] before the final norm, and float32 logits [L, V] of `ForwardBatch.logit_rows`."""

    hidden: Tensor
    logits: Tensor
