"""What a step gives back, and what the scheduler makes of it."""

from __future__ import annotations

import enum

import msgspec


class FinishReason(str, enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities at one position: the chosen (or prompt) token first, then the top n in falling order.

    `rank` is the chosen token's rank over the vocabulary, from 1.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class RowResult(msgspec.Struct, frozen=True):
    """The outcome of one RowPlan.

    token_ids: the accepted drafts and one token more (none when the row did not emit); logprobs: one entry for each of
    them, if asked for. drafts: guesses of the tokens after them, for the next step.
    prompt_logprobs: entry i describes prompt token `RowPlan.start + i + 1`.
    error: why this request cannot go on; the other rows are not affected.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    drafts: tuple[int, ...] = ()
    error: str | None = None


class StepResult(msgspec.Struct, frozen=True):
    """`rows[i]` belongs to `plan.rows[i]`."""

    step: int
    rows: tuple[RowResult, ...] = ()


class Delta(msgspec.Struct, frozen=True):
    """News about one request after a commit. The last delta of a request carries its finish reason."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs_start: int = 0  # index of the prompt token that the first entry describes
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_drafted: int = 0  # drafts that were verified so far, and how many of them were accepted
    num_accepted: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
