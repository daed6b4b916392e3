"""Ctrl-C between two steps: inside one it could leave the engine with half a plan."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """`wanted` becomes True with the first Ctrl-C; the second raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.wanted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True

    def check(self) -> None:
        if self.wanted:
            raise KeyboardInterrupt


@contextmanager
def interrupts_noted() -> Iterator[Interrupts]:
    """Use on the main thread, around code that looks at `wanted` after each step."""
    noted = Interrupts()
    before = signal.signal(signal.SIGINT, noted)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
