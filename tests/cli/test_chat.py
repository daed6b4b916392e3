"""`motet chat` over a pipe, and what a conversation keeps."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from motet import LLM, SamplingParams
from motet.cli.chat import Conversation
from motet.cli.prompts import PromptMaker, PromptStyle
from tests.checkpoints import save_model
from tests.cli.conftest import SMALL, RunCommand
from tests.tokenizers_tiny import save_tiny_tokenizer

GREEDY = ("--temperature", "0", "--max-tokens", "8", "--ignore-eos")
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(llama: Path) -> LLM:
    return LLM(str(llama), num_blocks_override=64, threads=1)


def converse(llm: LLM, system: str | None = None) -> Conversation:
    prompts = PromptMaker(llm.get_tokenizer(), PromptStyle())
    return Conversation(llm.engine, PARAMS, prompts, system)


def answer(llm: LLM, *turns: str, system: str | None = None) -> str:
    """Of a conversation that alternates between user and assistant."""
    messages = [{"role": "system", "content": system}] if system else []
    roles = ("user", "assistant")
    messages += [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return llm.chat(messages, PARAMS)[0].outputs[0].text


def test_each_turn_knows_the_ones_before(
    motet: RunCommand, model: tuple[str, ...], llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n\nAnd you?\n"))
    done = motet("chat", *model, *GREEDY, "--quiet")
    assert done.status == 0
    first = answer(llm, "Hello")
    second = answer(llm, "Hello", first, "And you?")
    assert done.out == f"{first}\n{second}\n"
    assert done.err == ""


def test_commands(motet: RunCommand, model: tuple[str, ...], llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = [
        "Hello",
        "/reset",
        "Hello",
        "/system Be brief.",
        "Hello",
        "/system",
        "Hello",
        "/help",
        "/foo",
        "/exit",
        "Hi",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed) + "\n"))
    done = motet("chat", *model, *GREEDY, "--quiet")
    plain, brief = answer(llm, "Hello"), answer(llm, "Hello", system="Be brief.")
    assert plain != brief
    assert done.out == f"{plain}\n{plain}\n{brief}\n{plain}\n"
    assert done.status == 0
    assert "Unknown command /foo" in done.err
    assert "/system TEXT" in done.err


def test_system_option(motet: RunCommand, model: tuple[str, ...], llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    done = motet("chat", *model, *GREEDY, "--system", "Be brief.")
    assert done.out == answer(llm, "Hello", system="Be brief.") + "\n"
    assert done.err.startswith("8 tokens")


def test_an_error_does_not_end_the_conversation(
    motet: RunCommand, model: tuple[str, ...], llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("x " * 900 + "\nHello\n"))
    done = motet("chat", *model, *GREEDY, "--quiet")
    assert done.status == 0
    assert done.out == answer(llm, "Hello") + "\n"
    assert done.err.startswith("error: the prompt has ")


def test_later_turns_come_from_the_prefix_cache(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    talk = converse(llm, system="You are a careful assistant who answers in a few words.")
    _, first = talk.ask("What is the question? The answer is here.")
    _, second = talk.ask("Why?")
    assert "cached" not in first
    assert "cached" in second


def test_the_earliest_turns_give_way_when_the_context_is_full(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    talk = converse(llm)
    told = []
    for number in range(14):
        was_stopped, summary = talk.ask(f"the quick brown fox {number}")
        assert not was_stopped
        told.append("no longer fit" in summary)
    assert told[0] is False
    assert told[-1] is True
    assert told == sorted(told)


def test_a_model_without_template_is_refused(motet: RunCommand, tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    save_tiny_tokenizer(tmp_path, chat_template=None)
    done = motet("chat", "--model", str(tmp_path), *SMALL)
    assert done.status == 1
    assert "no chat template" in done.err
