"""Logits processors that users bring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from motet.core.errors import ConfigError, InputError
from motet.core.params import SamplingParams
from motet.sampling.processors import LogitsRow
from tests.engine.driver import answer_bits, answers, generate, greedy, make_engine, only, random_prompts

PROMPTS = random_prompts((5, 14, 3, 9))


class Alternate:
    """Only even token ids behind an odd one, and only odd ones behind an even one. `state` counts the calls."""

    def wants(self, extra_args: dict[str, Any]) -> bool:
        if extra_args.get("alternate") == "wrong":
            raise ValueError("alternate must be true or false")
        return bool(extra_args.get("alternate"))

    def __call__(self, logits: Tensor, rows: Sequence[LogitsRow]) -> None:
        assert len(logits) == len(rows)
        for scores, row in zip(logits, rows, strict=True):
            row.state["calls"] = row.state.get("calls", 0) + 1
            assert row.state["calls"] > len(row.output_token_ids) or not len(row.output_token_ids)
            last = row.output_token_ids[-1] if len(row.output_token_ids) else row.prompt_token_ids[-1]
            scores[int(last) % 2 :: 2] = -float("inf")


def fail_on_seven(logits: Tensor, rows: Sequence[LogitsRow]) -> None:
    if any(7 in row.prompt_token_ids for row in rows):
        raise RuntimeError("seven")


ALTERNATING = [
    greedy(extra_args={"alternate": True}),
    SamplingParams(temperature=1.0, seed=2, max_tokens=12, ignore_eos=True, extra_args={"alternate": True}),
]
PLAIN = [greedy(), SamplingParams(temperature=1.0, seed=2, max_tokens=12, ignore_eos=True)]
PARAMS = [*ALTERNATING, *PLAIN]


@pytest.fixture(scope="module")
def folder(tiny_checkpoints: Any) -> Path:
    return tiny_checkpoints("Llama")[0]


def alternates(last: int, token_ids: list[int]) -> bool:
    return all((one + other) % 2 for one, other in zip([last, *token_ids], token_ids, strict=False))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_blocks_override": 12, "max_model_len": 40},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_processor_is_for_the_requests_that_want_it(folder: Path, options: dict[str, Any]) -> None:
    bare = generate(make_engine(folder), PROMPTS[2:], PLAIN)
    alone = [
        generate(make_engine(folder, logits_processors=[Alternate]), [prompt], params)[0]
        for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]
    engine = make_engine(folder, logits_processors=["tests.engine.test_processors:Alternate"], **options)
    found = generate(engine, PROMPTS, PARAMS)
    assert [answer_bits(output) for output in found] == [answer_bits(output) for output in alone]
    assert answers(found)[2:] == answers(bare)
    assert all(alternates(prompt[-1], answer) for prompt, answer in zip(PROMPTS[:2], answers(found), strict=False))
    assert len(answers(found)[0]) == 12


def test_what_a_processor_raises_ends_the_requests_of_its_rows_alone(folder: Path) -> None:
    def only_seven(logits: Tensor, rows: Sequence[LogitsRow]) -> None:
        fail_on_seven(logits, rows)

    only_seven.wants = lambda extra_args: bool(extra_args)  # type: ignore[attr-defined]
    engine = make_engine(folder, logits_processors=[only_seven])
    prompts, params = [[7, 8, 9], [5, 8, 9]], [greedy(extra_args={"x": 1}), greedy()]
    failed, other = generate(engine, prompts, params)
    assert only(failed).finish_reason == "error"
    assert "logits processor" in str(only(failed).stop_reason)
    assert answers([other]) == answers(generate(make_engine(folder), [prompts[1]], greedy()))


def test_arguments_are_checked_when_the_request_comes(folder: Path) -> None:
    engine = make_engine(folder, logits_processors=[Alternate()])
    with pytest.raises(InputError, match="alternate must be"):
        engine.parse([1, 2], greedy(extra_args={"alternate": "wrong"}))
    with pytest.raises(InputError, match="the engine has none"):
        make_engine(folder).parse([1, 2], greedy(extra_args={"alternate": True}))


@pytest.mark.parametrize(
    "wanted", ["no_such_module:Thing", "tests.engine.test_processors:Missing", "no-entry-point", 5]
)
def test_processors_that_cannot_be_had_are_refused(folder: Path, wanted: Any) -> None:
    with pytest.raises(ConfigError, match="logits_processors"):
        make_engine(folder, logits_processors=[wanted])
