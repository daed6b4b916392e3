"""What the commands write beside their results: notes and errors, on stderr, in colour where that helps."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO

RED, YELLOW, CYAN, BOLD, DIM = "31", "33", "36", "1", "2"


def has_colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def paint(text: str, code: str, stream: TextIO) -> str:
    """`text` in a colour, where `stream` shows it."""
    return f"\x1b[{code}m{text}\x1b[0m" if has_colour(stream) else text


def note(text: str, code: str = DIM) -> None:
    """One line on stderr."""
    print(paint(text, code, sys.stderr), file=sys.stderr, flush=True)


def report_error(message: str) -> None:
    """The one line that tells a user what is wrong."""
    line = " ".join(message.split())
    print(f"{paint('error:', RED, sys.stderr)} {line}", file=sys.stderr, flush=True)


def write_now(text: str) -> None:
    """Answer text on stdout, visible at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_fields(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns on stdout; a row without a value is a heading."""
    rows = list(rows)
    width = max((len(name) for name, value in rows if value), default=0)
    for number, (name, value) in enumerate(rows):
        if value:
            print(f"  {name.ljust(width)}  {value}")
        else:
            print(("\n" if number else "") + paint(name, BOLD, sys.stdout))
