"""`motet generate --input`: JSON lines in, JSON lines out, in the same order."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.cli.interrupts import Interrupts, interrupts_noted
from motet.cli.prompts import PromptMaker, with_changes
from motet.cli.terminal import YELLOW, note, write_now
from motet.core.errors import InputError
from motet.core.outputs import CompletionOutput, LogprobDict, RequestOutput
from motet.core.params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from motet.engine.engine import Engine
    from motet.engine.inputs import ParsedPrompt, Prompt

PROMPT_NAMES = ("prompt", "prompt_token_ids", "messages")
# Requests handed to the engine at a time, as a multiple of what it runs at once: enough to never starve it.
AHEAD = 2


@dataclass(frozen=True)
class Line:
    number: int
    text: str


@dataclass
class Tally:
    num_done: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


def read_lines(source: str) -> list[Line]:
    """The lines of a file ("-": standard input) that are not blank. Raises InputError."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read --input {source!r}: {reason(error)}") from None
    # Not splitlines(): U+2028 and its like may stand inside a JSON string.
    lines = [Line(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise InputError(f"--input {source!r} has no lines")
    return lines


def reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def check_output(source: str, target: str | None) -> None:
    """Raise InputError, before anything is loaded, for an output file that could not be written or is the input."""
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"cannot write --output {target!r}: {'it is a folder' if path.is_dir() else 'no such folder'}")
    if path.exists() and source != "-" and path.samefile(source):
        raise InputError(f"--output {target!r} is the input file; give another name")


@contextmanager
def open_output(target: str | None) -> Iterator[Callable[[str], object]]:
    """A function that writes a line where others see it at once."""
    if target is None or target == "-":
        yield write_now
        return
    with open(target, "w", encoding="utf-8", buffering=1) as file:
        yield file.write


class Batch:
    """Answers lines with an idle engine.

    write: takes the answer lines, in order; advance: is told of each finished request, as RequestProgress is
    """

    def __init__(
        self,
        engine: Engine,
        prompts: PromptMaker,
        defaults: SamplingParams,
        with_token_ids: bool,
        write: Callable[[str], object],
        advance: Callable[[int, int], None],
    ) -> None:
        self.engine = engine
        self.prompts = prompts
        self.defaults = defaults.clone(output_kind=RequestOutputKind.FINAL_ONLY)
        self.with_token_ids = with_token_ids or prompts.tokenizer is None
        self.tally = Tally()
        self._write = write
        self._advance = advance
        self._open: dict[str, tuple[int, dict[str, Any]]] = {}  # key -> place in the order, what the answer begins with
        self._ready: dict[int, dict[str, Any]] = {}  # answers that wait for an earlier one
        self._num_written = 0

    def run(self, lines: list[Line]) -> Tally:
        with interrupts_noted() as interrupts:
            self._run(lines, interrupts)
        return self.tally

    def _run(self, lines: list[Line], interrupts: Interrupts) -> None:
        window = AHEAD * self.engine.config.scheduler.max_num_seqs
        for place, line in enumerate(lines):
            self._add(place, line)
            while len(self._open) >= window:
                self._step()
                interrupts.check()
        while self._open:
            self._step()
            interrupts.check()

    def _step(self) -> None:
        for key, output in self.engine.step():
            place, head = self._open.pop(key)
            answer = self._answer(output)
            self._finish(place, {**head, **answer}, len(output.prompt_token_ids), _num_tokens(output))

    def _add(self, place: int, line: Line) -> None:
        head: dict[str, Any] = {}
        try:
            values = _parse(line.text)
            head = {"id": values.pop("id")} if "id" in values else {}
            prompt, params = self._request(values)
            self._open[self.engine.add(prompt, params)] = (place, head)
        except InputError as error:
            self._finish(place, {**head, "error": f"line {line.number}: {error}"}, 0, 0)

    def _request(self, values: dict[str, Any]) -> tuple[ParsedPrompt, SamplingParams]:
        named = [name for name in PROMPT_NAMES if name in values]
        if len(named) != 1:
            raise InputError(f"needs one of {', '.join(PROMPT_NAMES)}, got {' and '.join(named) or 'none'}")
        params = with_changes(self.defaults, {k: v for k, v in values.items() if k not in (*named, "cache_salt")})
        prompt = self._prompt(named[0], values[named[0]])
        if values.get("cache_salt") is not None:
            prompt = {
                **(prompt if isinstance(prompt, dict) else {"prompt": prompt}),
                "cache_salt": values["cache_salt"],
            }
        params = params.clone(output_kind=RequestOutputKind.FINAL_ONLY)
        return self.engine.parse(prompt, params), params

    def _prompt(self, kind: str, value: Any) -> Prompt:
        if kind == "prompt_token_ids":
            return {"prompt_token_ids": value}
        if kind == "messages":
            if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
                raise InputError("messages must be a list of objects with role and content")
            return self.prompts.from_messages(value)
        if not isinstance(value, str):
            raise InputError(f"prompt must be text, got {str(value)[:40]}")
        return self.prompts.from_text(value)

    def _answer(self, output: RequestOutput) -> dict[str, Any]:
        answers = [self._one(answer) for answer in output.outputs]
        failed = [answer for answer in output.outputs if answer.finish_reason == "error"]
        num_tokens = _num_tokens(output)
        usage = {
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": num_tokens,
            "total_tokens": len(output.prompt_token_ids) + num_tokens,
            "cached_tokens": output.num_cached_tokens or 0,
        }
        entry: dict[str, Any] = answers[0] if len(answers) == 1 else {"outputs": answers}
        if output.prompt_logprobs is not None:
            entry["prompt_logprobs"] = [_logprobs(item) for item in output.prompt_logprobs]
        if failed:
            entry["error"] = str(failed[0].stop_reason)
        return {**entry, "usage": usage}

    def _one(self, answer: CompletionOutput) -> dict[str, Any]:
        entry: dict[str, Any] = {"text": answer.text}
        if self.with_token_ids:
            entry["token_ids"] = answer.token_ids
        entry["finish_reason"] = answer.finish_reason
        if answer.stop_reason is not None:
            entry["stop_reason"] = answer.stop_reason
        if answer.logprobs is not None:
            entry["logprobs"] = [_logprobs(item) for item in answer.logprobs]
        return entry

    def _finish(self, place: int, entry: dict[str, Any], num_prompt_tokens: int, num_output_tokens: int) -> None:
        self.tally.num_done += 1
        self.tally.num_failed += "error" in entry
        self.tally.num_prompt_tokens += num_prompt_tokens
        self.tally.num_output_tokens += num_output_tokens
        self._advance(num_prompt_tokens, num_output_tokens)
        self._ready[place] = entry
        while self._num_written in self._ready:
            self._write(json.dumps(self._ready.pop(self._num_written), ensure_ascii=False) + "\n")
            self._num_written += 1


def _parse(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f'not JSON ({error}); a plain text needs quotes: "..."') from None
    if isinstance(value, str):
        return {"prompt": value}
    if not isinstance(value, dict):
        raise InputError(f"must be a JSON string or object, got {text[:40]}")
    return value


def _num_tokens(output: RequestOutput) -> int:
    return sum(len(answer.token_ids) for answer in output.outputs)


def _logprobs(entry: LogprobDict | None) -> dict[str, Any] | None:
    return None if entry is None else {str(token_id): asdict(logprob) for token_id, logprob in entry.items()}


def run_lines(
    engine: Engine,
    prompts: PromptMaker,
    defaults: SamplingParams,
    lines: list[Line],
    target: str | None,
    with_token_ids: bool,
    quiet: bool,
) -> Tally:
    """Answer all lines, with a progress bar where a terminal shows one, and a summary on stderr."""
    to_terminal = target in (None, "-") and sys.stdout.isatty()
    start = time.perf_counter()
    with open_output(target) as write, _progress(len(lines), not quiet and not to_terminal) as advance:
        tally = Batch(engine, prompts, defaults, with_token_ids, write, advance).run(lines)
    seconds = time.perf_counter() - start
    if not quiet:
        note(
            f"{tally.num_done} prompts in {seconds:.1f} s: {tally.num_prompt_tokens / seconds:.1f} prompt and "
            f"{tally.num_output_tokens / seconds:.1f} output tokens/s"
        )
    if tally.num_failed:
        note(f'{tally.num_failed} of {tally.num_done} prompts failed; see "error" in the output', YELLOW)
    return tally


@contextmanager
def _progress(total: int, wanted: bool) -> Iterator[Callable[[int, int], None]]:
    if not wanted or not sys.stderr.isatty():
        yield lambda num_prompt_tokens, num_output_tokens: None
        return
    from motet.engine.progress import RequestProgress

    with RequestProgress(total) as advance:
        yield advance
