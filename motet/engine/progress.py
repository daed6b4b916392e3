"""A progress bar over finished requests, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class RequestProgress:
    """Use as a context; it gives a function to call with the token counts of each finished request."""

    def __init__(self, total: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("requests", total=total, speed="")
        self._num_prompt_tokens = self._num_output_tokens = 0

    def __enter__(self) -> Callable[[int, int], None]:
        self._start = time.monotonic()
        self._bar.start()
        return self._advance

    def _advance(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self._num_prompt_tokens += num_prompt_tokens
        self._num_output_tokens += num_output_tokens
        seconds = max(time.monotonic() - self._start, 1e-9)
        speed = f"{self._num_prompt_tokens / seconds:.0f} prompt, {self._num_output_tokens / seconds:.0f} output tok/s"
        self._bar.update(self._task, advance=1, speed=speed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
