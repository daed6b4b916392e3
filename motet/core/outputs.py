"""What a client of LLM or AsyncLLM receives; vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Logprob:
    """`rank` counts from 1 over the vocabulary; `decoded_token` is the token's own text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobDict = dict[int, Logprob]


@dataclass
class CompletionOutput:
    """One of the `n` answers. text, token_ids and logprobs end at the same token.

    finish_reason: None while running, then "stop", "length", "abort" or "error".
    stop_reason: the stop string or stop token id that ended it (None for EOS); for an error, its message.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[LogprobDict] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """Seconds on the `time.monotonic` clock; preemptions and drafts of all answers together."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass
class RequestOutput:
    """All answers to one prompt. `num_cached_tokens` counts prompt tokens that came from the prefix cache."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    prompt_logprobs: list[LogprobDict | None] | None = None
    num_cached_tokens: int | None = None
    metrics: RequestMetrics | None = None
