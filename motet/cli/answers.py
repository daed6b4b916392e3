"""One request from the terminal: its text as it comes, and what it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from motet.cli.interrupts import interrupts_noted
from motet.core.errors import RequestError
from motet.core.outputs import CompletionOutput
from motet.core.params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from motet.engine.engine import Engine
    from motet.engine.inputs import Prompt


@dataclass
class Answer:
    """Times are seconds since the request was handed over; with several answers, num_tokens counts all of them."""

    texts: list[str]
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    first_token_s: float = 0.0
    last_token_s: float = 0.0

    def add(self, output: CompletionOutput) -> None:
        self.texts[output.index] += output.text
        self.num_tokens += len(output.token_ids)
        self.finish_reason = output.finish_reason
        if output.finish_reason == "error":
            raise RequestError(f"the request failed: {output.stop_reason}")

    def summary(self) -> str:
        """One line: tokens, speed, time to the first token, and how it ended unless it simply came to its end."""
        seconds = self.last_token_s - self.first_token_s
        rate = f" at {(self.num_tokens - 1) / seconds:.1f} tokens/s" if self.num_tokens > 1 and seconds > 0 else ""
        cached = f" ({self.num_cached_tokens} cached)" if self.num_cached_tokens else ""
        parts = [
            f"{self.num_tokens} tokens{rate}",
            f"first after {self.first_token_s:.2f} s",
            f"prompt {self.num_prompt_tokens} tokens{cached}",
        ]
        ends = {"length": "cut at the token limit", "abort": "stopped"}
        return ", ".join(parts + [ends[reason] for reason in [self.finish_reason or ""] if reason in ends])


def stream(engine: Engine, prompt: Prompt, params: SamplingParams, write: Callable[[str], None]) -> Answer:
    """Run one request on an idle engine and write the first answer's text as it comes.

    Ctrl-C ends the answer: what there is of it is returned, with finish_reason "abort". Raises InputError and
    RequestError.
    """
    params = params.clone(output_kind=RequestOutputKind.DELTA)
    answer = Answer([""] * params.n)
    parsed = engine.parse(prompt, params)
    start = time.perf_counter()
    key = engine.add(parsed, params)
    with interrupts_noted() as interrupts:
        while engine.has_work:
            outputs = engine.step()
            if interrupts.wanted and answer.finish_reason is None:
                outputs += engine.abort([key])
            for _, output in outputs:
                _take(answer, output.outputs, start, write)
                answer.num_prompt_tokens = len(output.prompt_token_ids)
                answer.num_cached_tokens = output.num_cached_tokens or 0
    return answer


def _take(answer: Answer, outputs: list[CompletionOutput], start: float, write: Callable[[str], None]) -> None:
    for output in outputs:
        if output.token_ids:
            answer.last_token_s = time.perf_counter() - start
            answer.first_token_s = answer.first_token_s or answer.last_token_s
        if output.index == 0 and output.text:
            write(output.text)
        answer.add(output)
