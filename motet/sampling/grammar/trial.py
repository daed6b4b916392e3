"""Tries a grammar in a process that may die of it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from motet.core.errors import InputError
from motet.core.structured import GrammarSpec
from motet.sampling.grammar import helper
from motet.sampling.grammar.protocol import Vocabulary

WALL_SECONDS = 4.0  # for a machine that is busy: an idle one meets the limit of CPU time first
START_SECONDS = 30.0


class HelperLost(Exception):
    """The helper ended, or was ended because it did not answer in time."""


class Trial:
    """One warm helper, started when first needed and again after it died. Any thread may ask; one spec at a time."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def translate(self, spec: GrammarSpec) -> str:
        """The grammar of `spec` for the backend. Raises InputError when it is wrong or takes too much."""
        line = json.dumps(msgspec.to_builtins(spec))
        with self._lock:
            process = self._started()
            try:
                answer = self._ask(process, line, WALL_SECONDS)
            except HelperLost:
                raise InputError(
                    f"{spec.kind} is too complex: compiling it took more than {helper.CPU_SECONDS} s of CPU time, "
                    f"{helper.MEMORY_BYTES >> 20} MiB of memory or {helper.STACK_BYTES >> 20} MiB of stack; simplify it"
                ) from None
        if "error" in answer:
            raise InputError(f"{spec.kind} cannot be used as structured output: {answer['error'][:1000]}")
        return str(answer["grammar"])

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        vocabulary = self._vocabulary()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(helper.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        line = json.dumps(
            {
                "tokens": [token.decode("latin-1") for token in vocabulary.tokens],
                "special_ids": sorted(vocabulary.special_ids),
                "eos_ids": sorted(vocabulary.eos_ids),
            }
        )
        try:
            self._ask(self._process, line, START_SECONDS)
        except HelperLost:
            raise InputError("structured outputs are not available: the process that tries grammars fails") from None
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], line: str, seconds: float) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        deadline, answer = time.monotonic() + seconds, b""
        try:
            left = memoryview(line.encode() + b"\n")
            while left:
                left = left[process.stdin.write(left) :]
            while not answer.endswith(b"\n"):
                readable = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
                piece = os.read(process.stdout.fileno(), 1 << 16) if readable else b""
                if not piece:
                    raise HelperLost
                answer += piece
        except (HelperLost, OSError):
            self._end()
            raise HelperLost from None
        except BaseException:  # Ctrl-C: its answer must not be taken for the next one's
            self._end()
            raise
        return dict(json.loads(answer))

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def close(self) -> None:
        with self._lock:
            self._end()
