"""What every command has in common: help, errors, exit statuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from motet import __version__
from tests.cli.conftest import RunCommand

MOTET = [sys.executable, "-c", "from motet.cli.main import main; main()"]
HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "rich.progress",
    "tokenizers",
    "motet.engine",
    "motet.runner",
    "motet.models",
)
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["generate", "--help"], ["bench", "startup", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom motet.cli.main import app, run_app\n"
        f"assert run_app(app, {words!r}) == 0\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=ENV)
    assert done.returncode == 0, done.stderr


def test_version(motet: RunCommand) -> None:
    done = motet("--version")
    assert (done.status, done.out) == (0, f"motet {__version__}\n")


def test_help_lists_the_commands(motet: RunCommand) -> None:
    done = motet("--help")
    assert done.status == 0
    for command in ("generate", "chat", "bench", "inspect", "env"):
        assert f"\n  {command} " in done.out


def test_help_of_a_command_has_its_options_under_headings(motet: RunCommand) -> None:
    out = motet("generate", "-h").out
    assert out.index("Arguments:") < out.index("Options:") < out.index("Sampling:") < out.index("Engine:")
    assert out.index("Sampling:") < out.index("--top-p") < out.index("Engine:") < out.index("--block-size")
    assert "--trust-remote-code" not in out


def test_no_command_shows_the_help(motet: RunCommand) -> None:
    done = motet()
    assert done.status in (0, 2)  # by the version of typer
    assert "Usage: motet" in done.out + done.err


USAGE = [
    (["frobnicate"], "no such command 'frobnicate'"),
    (["generate", "x", "--temprature", "1"], "unknown option --temprature; did you mean --temperature?"),
    (["generate", "x", "--max-modle-len", "1"], "unknown option --max-modle-len; did you mean --max-model-len?"),
    (["generate", "x", "--max-model-len", "abc"], "--max-model-len: must be a whole number, got 'abc'"),
    (["generate", "x", "--hf-overrides", "{"], "--hf-overrides: must be a JSON object, got '{'"),
    (["generate", "x", "--hf-overrides", "[1]"], "--hf-overrides: must be a JSON object, got '[1]'"),
    (["generate"], "give a prompt or --input FILE, and not both"),
    (["generate", "x", "--input", "y"], "give a prompt or --input FILE, and not both"),
    (["generate", "x", "--output", "y"], "--output: is for --input FILE"),
    (["generate", "x", "--logprobs", "1"], "--logprobs: is for --input FILE"),
    (["bench", "latency", "--num-iters", "0"], "--num-iters"),
]


@pytest.mark.parametrize(
    ("words", "message"), USAGE, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_wrong_command_line_is_one_line_and_status_2(motet: RunCommand, words: list[str], message: str) -> None:
    done = motet(*words)
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert "--help" in done.err


ERRORS = [
    (["generate", "x", "--model", "no/such/thing"], "no/such/thing"),
    (["generate", "x", "--model", "nosuch"], "'nosuch'"),
    (["inspect", "--model", "README.nope.gguf"], "README.nope.gguf"),
    (["generate", "x", "--block-size", "0"], "block_size must be from 1 to 1024, got 0"),
    (["generate", "x", "--dtype", "int3"], "dtype must be one of"),
    (["generate", "x", "--temperature", "-1"], "temperature must be"),
    (["generate", "x", "--trust-remote-code"], "trust_remote_code=True is not supported yet"),
    (["bench", "throughput", "--tensor-parallel-size", "2"], "tensor_parallel_size=2 is not supported yet"),
    (["generate", "--input", "nowhere.jsonl"], "nowhere.jsonl"),
    (["generate", "x", "--chat-template", "nowhere.jinja"], "nowhere.jinja"),
]


@pytest.mark.parametrize(
    ("words", "message"), ERRORS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_an_error_is_one_line_and_status_1(
    motet: RunCommand, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = motet(*words)
    assert done.status == 1
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_context_beyond_the_model_is_refused(motet: RunCommand, llama: Path) -> None:
    done = motet("generate", "x", "--model", str(llama), "--max-model-len", "9999")
    assert done.status == 1
    assert "max_model_len=9999" in done.err
    assert "256" in done.err


def test_too_little_memory_is_refused(motet: RunCommand, llama: Path) -> None:
    done = motet("generate", "x", "--model", str(llama), "--kv-cache-memory-bytes", "1000", "--threads", "1")
    assert done.status == 1
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


def test_debug_level_shows_the_traceback(motet: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_LOGGING_LEVEL", "debug")
    done = motet("generate", "x", "--block-size", "0")
    assert "Traceback" in done.err
    assert "error: " in done.err.splitlines()[-1]


def test_the_variable_names_a_model(motet: RunCommand, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_MODEL", str(llama))
    done = motet("inspect", "--json")
    assert json.loads(done.out)["model"]["name"] == str(llama)


@pytest.fixture
def endless(llama: Path, tmp_path: Path) -> list[str]:
    """A command that writes many lines, each at once, and would take minutes."""
    lines = tmp_path / "many.jsonl"
    lines.write_text('{"prompt": "x", "max_tokens": 100, "ignore_eos": true}\n' * 20_000)
    return [*MOTET, "generate", "--input", str(lines), "--model", str(llama), "--quiet", "--num-blocks-override", "64"]


def test_ctrl_c_ends_a_command_at_once_with_one_line(endless: list[str]) -> None:
    with subprocess.Popen(endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "error: interrupted\n")
    assert all("usage" in json.loads(line) for line in [first, *rest.splitlines()])


def test_a_reader_that_leaves_early_is_no_error(endless: list[str]) -> None:
    with subprocess.Popen(endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)
    assert err == ""
    assert process.returncode == 1
