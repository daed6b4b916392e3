"""Ctrl-C between steps, and the line under an answer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from motet import LLM, SamplingParams
from motet.cli.answers import Answer, stream
from motet.cli.interrupts import interrupts_noted

PARAMS = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
IDS = [5, 6, 7]


@pytest.fixture
def llm(llama: Path) -> Iterator[LLM]:
    llm = LLM(str(llama), num_blocks_override=64, threads=1)
    yield llm
    llm.engine.check()
    assert not llm.engine.has_work
    llm.shutdown()


def test_ctrl_c_stops_an_answer_and_the_engine_goes_on(llm: LLM) -> None:
    whole = llm.generate(IDS, PARAMS)[0].outputs[0]
    pieces: list[str] = []

    def write(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 5:
            signal.raise_signal(signal.SIGINT)

    answer = stream(llm.engine, {"prompt_token_ids": IDS}, PARAMS, write)
    assert answer.finish_reason == "abort"
    assert 5 <= answer.num_tokens < 30
    assert whole.text.startswith(answer.texts[0])
    assert answer.summary().endswith("stopped")
    assert llm.generate(IDS, PARAMS)[0].outputs[0].token_ids == whole.token_ids


def test_a_second_ctrl_c_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT)

    def press_twice() -> None:
        with interrupts_noted() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert interrupts.wanted
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        press_twice()
    assert signal.getsignal(signal.SIGINT) is before


def test_check_raises_only_after_ctrl_c() -> None:
    def work() -> None:
        with interrupts_noted() as interrupts:
            interrupts.check()
            signal.raise_signal(signal.SIGINT)
            interrupts.check()

    with pytest.raises(KeyboardInterrupt):
        work()


def test_summary() -> None:
    answer = Answer([""], "length", num_prompt_tokens=30, num_cached_tokens=16, num_tokens=11)
    answer.first_token_s, answer.last_token_s = 0.25, 2.25
    assert (
        answer.summary()
        == "11 tokens at 5.0 tokens/s, first after 0.25 s, prompt 30 tokens (16 cached), cut at the token limit"
    )


def test_summary_of_one_token_has_no_rate() -> None:
    answer = Answer([""], "stop", num_prompt_tokens=3, num_tokens=1, first_token_s=0.1, last_token_s=0.1)
    assert answer.summary() == "1 tokens, first after 0.10 s, prompt 3 tokens"
