"""From the scheduler's deltas to what clients see: text, stop strings, logprobs, usage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from motet.core.outputs import CompletionOutput, Logprob, LogprobDict, RequestMetrics, RequestOutput
from motet.core.params import RequestOutputKind, SamplingParams
from motet.core.result import Delta, FinishReason, TokenLogprobs
from motet.engine.inputs import ParsedPrompt, answer_id, split_answer_id
from motet.text.output import TextSink, make_text_sink
from motet.text.tokenizer import Tokenizer

KeyedOutput = tuple[str, RequestOutput]


@dataclass
class Answer:
    """One of the n answers; `sent_*` is how much a DELTA client has received."""

    index: int
    text: TextSink
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[LogprobDict] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_preemptions: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    sent_pieces: int = 0
    sent_tokens: int = 0

    def output(self, only_new: bool) -> CompletionOutput:
        from_piece, from_token = (self.sent_pieces, self.sent_tokens) if only_new else (0, 0)
        self.sent_pieces, self.sent_tokens = len(self.pieces), len(self.token_ids)
        return CompletionOutput(
            index=self.index,
            text="".join(self.pieces[from_piece:]),
            token_ids=self.token_ids[from_token:],
            cumulative_logprob=self.cumulative_logprob,
            logprobs=self.logprobs[from_token:] if self.logprobs is not None else None,
            finish_reason=self.finish_reason.value if self.finish_reason else None,
            stop_reason=self.stop_reason,
        )


@dataclass
class OpenRequest:
    key: str
    request_id: str
    prompt: ParsedPrompt
    params: SamplingParams
    answers: list[Answer]
    metrics: RequestMetrics
    prompt_logprobs: list[LogprobDict | None] | None
    num_cached_tokens: int | None = None
    has_sent: bool = False

    @property
    def is_finished(self) -> bool:
        return all(answer.finish_reason is not None for answer in self.answers)


class OutputProcessor:
    """Owns the text side of every open request."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._open: dict[str, OpenRequest] = {}

    @property
    def num_open(self) -> int:
        return len(self._open)

    def add(self, key: str, request_id: str, prompt: ParsedPrompt, params: SamplingParams, arrival: float) -> None:
        """Open a request. `key` is unique among all requests ever; `request_id` is the client's own name for it."""
        wants_logprobs = params.logprobs is not None
        self._open[key] = OpenRequest(
            key=key,
            request_id=request_id,
            prompt=prompt,
            params=params,
            answers=[
                Answer(
                    index=index,
                    text=make_text_sink(self._tokenizer, prompt.token_ids, params),
                    logprobs=[] if wants_logprobs else None,
                    cumulative_logprob=0.0 if wants_logprobs else None,
                )
                for index in range(params.n)
            ],
            metrics=RequestMetrics(arrival),
            prompt_logprobs=None if params.prompt_logprobs is None else [None] * len(prompt.token_ids),
        )

    def keys_of(self, request_id: str) -> list[str]:
        return [key for key, request in self._open.items() if request.request_id == request_id]

    def process(self, deltas: Sequence[Delta]) -> tuple[list[KeyedOutput], list[tuple[str, str]]]:
        """Returns outputs to hand on, and (answer id, stop string) of answers that the scheduler must end."""
        changed: dict[str, list[int]] = {}
        stops: list[tuple[str, str]] = []
        for delta in deltas:
            key, index = split_answer_id(delta.request_id)
            request = self._open.get(key)
            if request is None or request.answers[index].finish_reason is not None:
                continue  # it has ended while this step was under way
            stop = self._apply(request, request.answers[index], delta)
            if stop is not None and delta.finish_reason is None:
                stops.append((delta.request_id, stop))
            if delta.token_ids or delta.finish_reason is not None:  # prompt logprobs wait for the first token
                changed.setdefault(key, []).append(index)
        outputs = [(key, self._output(self._open[key], indices)) for key, indices in changed.items()]
        return [(key, output) for key, output in outputs if output is not None], stops

    def abort(self, key: str) -> tuple[list[str], KeyedOutput | None]:
        """End all answers of a request: the ids of those that ran, and its last output. Unknown keys are ignored."""
        request = self._open.get(key)
        if request is None:
            return [], None
        running = [answer.index for answer in request.answers if answer.finish_reason is None]
        for index in running:
            self._finish(request.answers[index], FinishReason.ABORT, None)
        output = self._output(request, running)
        return [answer_id(key, index) for index in running], (key, output) if output else None

    def _apply(self, request: OpenRequest, answer: Answer, delta: Delta) -> str | None:
        now = time.monotonic()
        if delta.token_ids and request.metrics.first_token_time is None:
            request.metrics.first_token_time = now
        if request.num_cached_tokens is None:
            request.num_cached_tokens = delta.num_cached_tokens
        answer.num_preemptions = delta.num_preemptions
        answer.num_drafted, answer.num_accepted = delta.num_drafted, delta.num_accepted
        request.metrics.num_preemptions = sum(answer.num_preemptions for answer in request.answers)
        request.metrics.num_draft_tokens = sum(answer.num_drafted for answer in request.answers)
        request.metrics.num_accepted_tokens = sum(answer.num_accepted for answer in request.answers)
        if request.prompt_logprobs is not None:
            for offset, entry in enumerate(delta.prompt_logprobs):
                request.prompt_logprobs[delta.prompt_logprobs_start + offset] = self._logprob_dict(entry)
        stop = self._add_tokens(answer, delta)
        if stop is not None:
            self._finish(answer, FinishReason.STOP, stop)
        elif delta.finish_reason is not None:
            self._finish(answer, delta.finish_reason, delta.error or delta.stop_reason)
        if request.is_finished:
            request.metrics.finished_time = now
        return stop

    def _add_tokens(self, answer: Answer, delta: Delta) -> str | None:
        """Append what counts of the delta's tokens; returns the stop string that was completed."""
        news = answer.text.push(delta.token_ids, ends_with_stop_token=delta.finish_reason is FinishReason.STOP)
        if news.text:
            answer.pieces.append(news.text)
        answer.token_ids.extend(delta.token_ids[: news.num_tokens])
        if answer.logprobs is not None and answer.cumulative_logprob is not None:
            for entry in delta.logprobs[: news.num_tokens]:
                answer.logprobs.append(self._logprob_dict(entry))
                answer.cumulative_logprob += entry.logprobs[0]
        return news.stop

    @staticmethod
    def _finish(answer: Answer, reason: FinishReason, stop_reason: int | str | None) -> None:
        answer.finish_reason, answer.stop_reason = reason, stop_reason
        rest = answer.text.finish().text
        if rest:
            answer.pieces.append(rest)

    def _output(self, request: OpenRequest, indices: list[int]) -> RequestOutput | None:
        finished = request.is_finished
        if finished:
            del self._open[request.key]
        kind = request.params.output_kind
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        only_new = kind is RequestOutputKind.DELTA
        answers = [request.answers[i] for i in dict.fromkeys(indices)] if only_new else request.answers
        prompt_logprobs = None if only_new and request.has_sent else request.prompt_logprobs
        request.has_sent = True
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt.text,
            prompt_token_ids=request.prompt.token_ids,
            outputs=[answer.output(only_new) for answer in answers],
            finished=finished,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=request.num_cached_tokens,
            metrics=request.metrics,
        )

    def _logprob_dict(self, entry: TokenLogprobs) -> LogprobDict:
        """The chosen token first, with its own rank; then the others by rank."""
        found: LogprobDict = {}
        for rank, (token_id, logprob) in enumerate(zip(entry.token_ids, entry.logprobs, strict=True)):
            if token_id not in found:
                text = self._tokenizer.token_text(token_id) if self._tokenizer else None
                found[token_id] = Logprob(logprob, entry.rank if rank == 0 else rank, text)
        return found
