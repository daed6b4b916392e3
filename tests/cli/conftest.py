"""Running commands on a tiny checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from motet.cli.main import app, run_app
from tests.conftest import TinyCheckpoints

SMALL = ("--num-blocks-override", "64", "--threads", "1")


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


RunCommand = Callable[..., Done]


@pytest.fixture
def motet(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Run a command in this process, as the console script does."""

    def run(*words: str) -> Done:
        capsys.readouterr()
        status = run_app(app, list(words))
        captured = capsys.readouterr()
        return Done(status, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def llama(tiny_checkpoints: TinyCheckpoints) -> Path:
    folder, _ = tiny_checkpoints("Llama")
    return folder


@pytest.fixture
def model(llama: Path) -> tuple[str, ...]:
    """Flags that choose the tiny model."""
    return ("--model", str(llama), *SMALL)
