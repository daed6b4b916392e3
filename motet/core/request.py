"""A request as the engine sees it. Only the scheduler writes one after construction."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from motet.core.lora import LoadedAdapter
from motet.core.params import RowSampling
from motet.core.result import FinishReason


class RequestStatus(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()  # waits for blocks again; keeps its output
    FINISHED = enum.auto()


@dataclass(eq=False)
class Request:
    """Quantities:

    prompt_len        tokens the client sent; never changes
    num_tokens        prompt and output tokens known to the scheduler
    num_inflight      tokens that launched steps will add; their values are still unknown here
    num_computed      tokens whose KV is written once all launched steps have run (advanced when scheduling)
    num_cached        prompt tokens taken from the prefix cache at the first admission (None before it)
    num_registered    leading blocks whose content has been offered to the prefix cache
    num_prompt_logprobs  prompt log-probabilities already delivered; a resumed prompt brings the same ones again
    num_drafted, num_accepted  drafts that steps have verified, and how many of them were right
    sequence          order of arrival at the scheduler; breaks ties of `arrival`
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: RowSampling
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()  # reported as stop_reason
    eos_token_ids: frozenset[int] = frozenset()  # end the request with stop_reason None
    priority: int = 0
    arrival: float = 0.0
    cache_salt: str | None = None
    adapter: LoadedAdapter | None = None
    skip_prefix_cache_read: bool = False

    output_token_ids: list[int] = field(default_factory=list)
    num_inflight: int = 0
    num_computed: int = 0
    num_cached: int | None = None
    num_registered: int = 0
    num_prompt_logprobs: int = 0
    sequence: int = 0
    num_preemptions: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    drafts: tuple[int, ...] = ()  # for its next step
    row: int | None = None
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    block_hashes: list[bytes] = field(default_factory=list)  # one per full block of known tokens
    blocks: list[list[int]] = field(default_factory=list)  # [group][i]: block i of the request, 0 = null

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_tokens_expected(self) -> int:
        return self.num_tokens + self.num_inflight

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output_token_ids

    def token_ids_between(self, start: int, end: int) -> list[int]:
        """Known tokens [start, end) without copying the whole history."""
        prompt_len = len(self.prompt_token_ids)
        if end <= prompt_len:
            return self.prompt_token_ids[start:end]
        return self.prompt_token_ids[start:] + self.output_token_ids[max(start - prompt_len, 0) : end - prompt_len]
