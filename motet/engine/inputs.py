"""From a client's prompt and parameters to requests; everything that can be refused at once is refused here."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from motet.core.errors import InputError, UnsupportedError
from motet.core.lora import LoadedAdapter
from motet.core.params import MAX_LOGPROBS_ALL, RequestOutputKind, RowSampling, SamplingParams
from motet.core.request import Request
from motet.sampling.grammar.grammars import NO_GRAMMARS, Grammars
from motet.sampling.processors import LogitsProcessor, wants
from motet.text.tokenizer import Tokenizer


def answer_id(key: str, index: int) -> str:
    """The scheduler's id of one of a request's answers."""
    return f"{key}#{index}"


def split_answer_id(request_id: str) -> tuple[str, int]:
    key, _, index = request_id.partition("#")
    return key, int(index)


Prompt = str | Sequence[int] | Mapping[str, Any]
PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}
MAX_BIAS = 100.0


@dataclass(frozen=True)
class ModelFacts:
    """What checking a request takes. `tokenizer` is None with skip_tokenizer_init."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    eos_token_ids: frozenset[int]
    tokenizer: Tokenizer | None
    logits_processors: tuple[LogitsProcessor, ...] = ()


@dataclass(frozen=True)
class ParsedPrompt:
    text: str | None
    token_ids: list[int]
    cache_salt: str | None


class InputProcessor:
    """Builds `n` requests per prompt. Raises InputError for what this engine can never serve."""

    def __init__(self, facts: ModelFacts, seed: int, grammars: Grammars = NO_GRAMMARS) -> None:
        self.facts = facts
        self._grammars = grammars
        self._seeds = random.Random(seed)

    def parse(self, prompt: Prompt, params: SamplingParams) -> ParsedPrompt:
        """Tokenise, truncate and check one prompt."""
        text, ids, salt = self._split(prompt)
        if ids is None:
            if not text:
                raise InputError("the prompt is empty; give at least one character, or prompt_token_ids")
            ids = self._tokenizer("a text prompt").encode(text)
        ids = self._truncate(ids, params.truncate_prompt_tokens)
        self._check_prompt(ids)
        return ParsedPrompt(text, ids, salt)

    def _split(self, prompt: Prompt) -> tuple[str | None, list[int] | None, str | None]:
        if isinstance(prompt, str):
            return prompt, None, None
        if not isinstance(prompt, Mapping):
            return None, _token_ids(prompt), None
        unknown = set(prompt) - PROMPT_KEYS
        if unknown:
            raise UnsupportedError(f"prompt keys {sorted(unknown)} are not supported; known: {sorted(PROMPT_KEYS)}")
        text, ids, salt = (prompt.get(key) for key in ("prompt", "prompt_token_ids", "cache_salt"))
        if not isinstance(text, str) and (text is not None or ids is None):
            raise InputError("a prompt needs 'prompt' (text) or 'prompt_token_ids' (a list of ints)")
        _check_salt(salt)
        return text, None if ids is None else _token_ids(ids), salt

    def _truncate(self, ids: list[int], limit: int | None) -> list[int]:
        if limit is None:
            return ids
        longest = self.facts.max_model_len - 1  # room for one new token
        if limit > self.facts.max_model_len:
            raise InputError(
                f"truncate_prompt_tokens={limit} is more than the context length {self.facts.max_model_len}"
            )
        return ids[-(longest if limit == -1 else limit) :]

    def _check_prompt(self, ids: list[int]) -> None:
        if not ids:
            raise InputError("the prompt has no tokens; give at least one")
        if len(ids) >= self.facts.max_model_len:
            raise InputError(
                f"the prompt has {len(ids)} tokens, but the context length is {self.facts.max_model_len} tokens and at "
                "least one is needed for the answer; shorten the prompt or set truncate_prompt_tokens"
            )
        self._check_ids("prompt token id", ids)

    def _check_ids(self, what: str, ids: Iterable[int]) -> None:
        for token_id in ids:
            if not 0 <= token_id < self.facts.vocab_size:
                raise InputError(f"{what} {token_id} is outside the vocabulary (0 to {self.facts.vocab_size - 1})")

    def _tokenizer(self, purpose: str) -> Tokenizer:
        if self.facts.tokenizer is None:
            raise InputError(f"{purpose} needs a tokenizer, but the engine runs with skip_tokenizer_init=True")
        return self.facts.tokenizer

    def requests(
        self,
        key: str,
        prompt: ParsedPrompt,
        params: SamplingParams,
        priority: int,
        arrival: float,
        adapter: LoadedAdapter | None = None,
    ) -> list[Request]:
        """One request per answer; answer i has seed + i."""
        facts = self.facts
        if not isinstance(priority, int):
            raise InputError(f"priority must be an int, got {priority!r}")
        eos = self._eos(params)
        sampling = self._row_sampling(params, eos)
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        room = facts.max_model_len - len(prompt.token_ids)
        return [
            Request(
                request_id=answer_id(key, index),
                prompt_token_ids=prompt.token_ids,
                sampling=_with_seed(sampling, seed + index),
                max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
                stop_token_ids=frozenset(params.stop_token_ids or ()),
                eos_token_ids=eos,
                priority=priority,
                arrival=arrival,
                cache_salt=prompt.cache_salt,
                adapter=adapter,
                skip_prefix_cache_read=params.prompt_logprobs is not None,
            )
            for index in range(params.n)
        ]

    def check_params(self, params: SamplingParams) -> None:
        """Raise InputError for parameters that no prompt could make good."""
        self._row_sampling(params, self._eos(params))

    def _eos(self, params: SamplingParams) -> frozenset[int]:
        return frozenset() if params.ignore_eos else self.facts.eos_token_ids

    def _row_sampling(self, params: SamplingParams, eos: frozenset[int]) -> RowSampling:
        self._check_ids("stop_token_ids: id", params.stop_token_ids or ())
        self._check_ids("allowed_token_ids: id", params.allowed_token_ids or ())
        self._check_ids("logit_bias: id", params.logit_bias or ())
        if params.stop_strings:
            self._tokenizer("stop")
        bad_words = self._bad_words(params)
        suppressed = eos | frozenset(params.stop_token_ids or ()) if params.min_tokens else frozenset[int]()
        allowed = None if params.allowed_token_ids is None else tuple(sorted(set(params.allowed_token_ids)))
        _check_leaves_choice(allowed, bad_words, suppressed)
        structured = params.structured_outputs
        return RowSampling(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=min(max(params.top_k, 0), self.facts.vocab_size),
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            min_tokens=min(params.min_tokens, self.facts.max_model_len),
            suppressed_until_min=tuple(sorted(suppressed)),
            logit_bias={i: min(max(b, -MAX_BIAS), MAX_BIAS) for i, b in (params.logit_bias or {}).items()},
            allowed_token_ids=allowed,
            bad_words=bad_words,
            num_logprobs=self._num_logprobs("logprobs", params.logprobs),
            num_prompt_logprobs=self._num_logprobs("prompt_logprobs", params.prompt_logprobs),
            extra_args=self._extra_args(params),
            grammar=None if structured is None else self._grammars.check(structured),
        )

    def _extra_args(self, params: SamplingParams) -> dict[str, Any]:
        extra_args = params.extra_args or {}
        if extra_args and not self.facts.logits_processors:
            raise InputError(f"extra_args {sorted(extra_args)} are for logits processors, and the engine has none")
        for processor in self.facts.logits_processors:
            try:
                wants(processor, extra_args)
            except Exception as error:
                raise InputError(f"a logits processor refuses extra_args {extra_args!r}: {error}") from error
        return extra_args

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        if not params.bad_words:
            return ()
        tokenizer = self._tokenizer("bad_words")
        return tuple(tuple(ids) for word in params.bad_words for ids in tokenizer.bad_word_ids(word))

    def _num_logprobs(self, name: str, wanted: int | None) -> int | None:
        if wanted is None:
            return None
        count = self.facts.vocab_size if wanted == MAX_LOGPROBS_ALL else wanted
        limit = self.facts.vocab_size if self.facts.max_logprobs == MAX_LOGPROBS_ALL else self.facts.max_logprobs
        if count > limit:
            raise InputError(
                f"{name}={wanted} is more than max_logprobs={limit}; raise that engine option or ask for less"
            )
        return count


def own_params(params: Any, output_kind: RequestOutputKind | None = None) -> SamplingParams:
    """A copy that the client cannot change any more, checked again: the client may have changed it since."""
    if not isinstance(params, SamplingParams):
        raise InputError(f"sampling_params must be SamplingParams, got {str(params)[:80]!r}")
    return params.clone() if output_kind is None else params.clone(output_kind=output_kind)


def _with_seed(sampling: RowSampling, seed: int) -> RowSampling:
    seed = (seed + 2**63) % 2**64 - 2**63  # as a signed 64-bit integer
    return msgspec.structs.replace(sampling, seed=seed)


def _token_ids(ids: Any) -> list[int]:
    is_list = isinstance(ids, Sequence) and not isinstance(ids, (str, bytes, bytearray))
    if not is_list or any(not isinstance(i, int) or isinstance(i, bool) for i in ids):
        raise InputError(f"prompt_token_ids must be a list of ints, got {str(ids)[:80]}")
    return list(ids)


def _check_salt(salt: Any) -> None:
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise InputError(f"cache_salt must be a text of at least one character, got {str(salt)[:80]!r}")
    try:
        salt.encode()
    except UnicodeError as error:
        raise InputError(f"cache_salt is not valid Unicode text: {error}") from None


def _check_leaves_choice(
    allowed: tuple[int, ...] | None, bad_words: tuple[tuple[int, ...], ...], suppressed: frozenset[int]
) -> None:
    """`suppressed`: what cannot be the first token because of min_tokens."""
    if allowed is None:
        return
    left = set(allowed) - {word[0] for word in bad_words if len(word) == 1}
    if not left:
        raise InputError("bad_words forbid every token of allowed_token_ids; no token would be left to choose")
    if left <= suppressed:
        raise InputError(
            "min_tokens forbids stop tokens at first, and allowed_token_ids has no others; add some or drop min_tokens"
        )
