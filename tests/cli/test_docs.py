"""The commands in the README and in docs/cli.md run, with a tiny model in place of the one they name."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import RunCommand

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
LINES = [
    line.strip() for line in [*README.splitlines(), *PAGE.splitlines()] if re.match(r"    (echo .*\| )?motet ", line)
]
PROMPTS = next(block for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "messages" in block)
SMALLER = {"--num-prompts": "2", "--input-len": "8", "--output-len": "4", "--max-tokens": "4", "--num-iters": "1"}


@pytest.mark.parametrize("line", LINES)
def test_the_command_runs(
    motet: RunCommand, llama: Path, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOTET_MODEL", str(llama))
    Path("prompts.jsonl").write_text(PROMPTS.replace("[504, 3575, 282]", "[50, 357, 282]"))
    words = shlex.split(line, comments=True)
    stdin = "Hello\n" if words[0] == "echo" or "chat" in words else PROMPTS
    words = words[words.index("motet") + 1 :]
    words = words[: words.index("<")] if "<" in words else words
    for at, word in enumerate(words[:-1]):
        if word == "--model":
            words[at + 1] = str(llama)
        words[at + 1] = SMALLER.get(word, words[at + 1])
    if "--max-model-len" in words:
        words[words.index("--max-model-len") + 1] = "128"
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin.replace("[504, 3575, 282]", "[50, 357, 282]")))
    done = motet(*words)
    assert done.status == 0, done.err
    assert done.out or "--output" in words
    if "--output" in words:
        assert len(Path("out.jsonl").read_text().splitlines()) == len(PROMPTS.splitlines())


def test_there_are_examples_of_every_command() -> None:
    for command in ("generate", "chat", "bench throughput", "bench latency", "bench startup", "inspect", "env"):
        assert any(f"motet {command}" in line for line in LINES)
