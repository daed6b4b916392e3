"""Sampling parameters: what a client says, and what a row of the batch needs."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from motet.core.errors import InputError
from motet.core.fields import settle_fields
from motet.core.structured import StructuredOutputsParams

MAX_LOGPROBS_ALL = -1
MAX_ANSWERS = 16384  # per prompt, as in vLLM
SEED_BITS = 64


class RequestOutputKind(enum.Enum):
    CUMULATIVE = 0  # every output holds everything so far
    DELTA = 1  # every output holds what is new
    FINAL_ONLY = 2  # one output, at the end


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """How to choose tokens and when to stop; names, meanings and defaults are vLLM's.

    temperature 0 means greedy; `top_k` 0 or -1 means all tokens. `logprobs=n` reports the n most likely tokens
    beside the chosen one, -1 all. `bad_words` are texts that may not be completed. `structured_outputs` may also be a
    dict of StructuredOutputsParams' fields. Raises InputError.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    structured_outputs: Any = None  # StructuredOutputsParams | None, once constructed
    extra_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        settle_fields(self, InputError)
        self.structured_outputs = _structured(self.structured_outputs)
        self._check_numbers()
        self._check_stops()

    def _check_numbers(self) -> None:
        ranges: list[tuple[str, bool, str]] = [
            ("n", 1 <= self.n <= MAX_ANSWERS, f"from 1 to {MAX_ANSWERS}"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "in [-2, 2]"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "in [-2, 2]"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "greater than 0"),
            ("temperature", 0 <= self.temperature < math.inf, "a finite number, at least 0"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k >= -1, "-1, 0 (all tokens) or at least 1"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1"),
            ("min_tokens", self.min_tokens >= 0, "at least 0"),
            ("logprobs", self.logprobs is None or self.logprobs >= -1, "-1 (all) or at least 0"),
            ("prompt_logprobs", self.prompt_logprobs is None or self.prompt_logprobs >= -1, "-1 (all) or at least 0"),
            (
                "truncate_prompt_tokens",
                self.truncate_prompt_tokens is None or self.truncate_prompt_tokens >= -1,
                "-1 (the context length) or at least 1",
            ),
            ("seed", self.seed is None or -(2**63) <= self.seed < 2**64, "a 64-bit integer"),
        ]
        for name, is_good, wanted in ranges:
            if not is_good:
                raise InputError(f"{name} must be {wanted}, got {getattr(self, name)}")
        if self.truncate_prompt_tokens == 0:
            raise InputError("truncate_prompt_tokens must be -1 (the context length) or at least 1, got 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InputError(f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})")
        for token_id, bias in (self.logit_bias or {}).items():
            if math.isnan(bias):
                raise InputError(f"logit_bias must be numbers, got {bias} for token {token_id}")

    def _check_stops(self) -> None:
        if any(not stop for stop in self.stop_strings):
            raise InputError("stop must not contain an empty string")
        if self.stop_strings and not self.detokenize:
            raise InputError("stop strings need detokenize=True; use stop_token_ids instead")
        if any(not word for word in self.bad_words or ()):
            raise InputError("bad_words must not contain an empty string")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InputError("allowed_token_ids must not be empty; leave it out to allow every token")

    @property
    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def clone(self, **changes: Any) -> SamplingParams:
        return msgspec.structs.replace(self, **changes)


def _structured(value: Any) -> StructuredOutputsParams | None:
    """Checked again where it was checked before: the client may have changed it since."""
    if value is None:
        return None
    if isinstance(value, StructuredOutputsParams):
        return msgspec.structs.replace(value)
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InputError(f"structured_outputs must be StructuredOutputsParams or a dict, got {str(value)[:80]!r}")
    unknown = sorted(set(value) - set(StructuredOutputsParams.__struct_fields__))
    if unknown:
        known = ", ".join(StructuredOutputsParams.__struct_fields__)
        raise InputError(f"structured_outputs has no field {unknown[0]!r}; it has: {known}")
    return StructuredOutputsParams(**value)


GREEDY_BELOW = 1e-5  # a temperature under this is greedy, as in vLLM


class RowSampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """SamplingParams of one request, checked against the vocabulary and turned into token ids.

    top_k 0 means all tokens. `suppressed_until_min` are the ids (EOS and stop ids) that cannot be drawn before
    `min_tokens` outputs. A bad word is a token sequence whose last token is masked when the others precede it.
    num_logprobs, num_prompt_logprobs: None means not asked for, vocab_size means all. `grammar` is a backend's own
    text, known to compile.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    suppressed_until_min: tuple[int, ...] = ()
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    extra_args: dict[str, Any] = {}  # for logits processors
    grammar: str | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW
