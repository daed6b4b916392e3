"""Flags are made from fields: every field has one, and a value comes back as what the field wants."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import msgspec
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from motet.cli.flags import FlagGroup, Given, spell, with_flags
from motet.cli.options import CHAT_SAMPLING, ENGINE, ENGINE_HELP, NO_FLAGS, SAMPLING, SAMPLING_HELP
from motet.cli.startup import to_arguments
from motet.core.config import NOT_YET, EngineArgs
from motet.core.params import SamplingParams


def run_group(group: FlagGroup, words: list[str]) -> Given:
    """What a command with only this group receives."""
    found: list[Given] = []

    @with_flags(options=group)
    def command(*, options: Given) -> None:
        found.append(options)

    app = typer.Typer(add_completion=False)
    app.command()(command)
    app(words, standalone_mode=False)
    return found[0]


def test_every_engine_argument_has_a_flag_with_a_help_text() -> None:
    visible = {flag.field for flag in ENGINE.flags() if not flag.hidden}
    assert visible == set(EngineArgs.__struct_fields__) - {"seed", "logits_processors"}
    assert set(ENGINE_HELP) == visible
    assert {flag.field for flag in ENGINE.flags() if flag.hidden} == set(NOT_YET)


def test_every_sampling_parameter_has_a_flag_with_a_help_text() -> None:
    fields = set(SamplingParams.__struct_fields__) - NO_FLAGS
    assert {flag.field for flag in SAMPLING.flags()} == fields == set(SAMPLING_HELP)
    assert {flag.field for flag in CHAT_SAMPLING.flags()} < fields


def test_what_was_not_given_is_left_to_the_struct() -> None:
    assert run_group(ENGINE, []) == {"model": "smollm2"}
    assert run_group(SAMPLING, []) == {"max_tokens": 512}
    assert run_group(CHAT_SAMPLING, []) == {"max_tokens": None}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-model-len", "128"], {"max_model_len": 128}),
        (["--gpu-memory-utilization", "0.25"], {"gpu_memory_utilization": 0.25}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["--enable-prefix-caching"], {"enable_prefix_caching": True}),
        (["--hf-overrides", '{"rope_theta": 1e4}'], {"hf_overrides": {"rope_theta": 1e4}}),
        (["--num-gpu-blocks-override", "7"], {"num_blocks_override": 7}),
        (["--enforce-eager"], {"enforce_eager": True}),
        (["--tensor-parallel-size", "2"], {"tensor_parallel_size": 2}),
        (["--quantization", "awq"], {"quantization": "awq"}),
    ],
)
def test_engine_flags(words: list[str], expected: Given) -> None:
    assert run_group(ENGINE, words) == {"model": "smollm2", **expected}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--temperature", "0"], {"temperature": 0.0}),
        (["--stop", "a", "--stop", "b,c"], {"stop": ["a", "b,c"]}),
        (["--stop-token-ids", "1,2", "--stop-token-ids", "3"], {"stop_token_ids": [1, 2, 3]}),
        (["--logit-bias", '{"5": -1, "6": 2.5}'], {"logit_bias": {5: -1.0, 6: 2.5}}),
        (["--max-tokens", "3", "--ignore-eos"], {"max_tokens": 3, "ignore_eos": True}),
        (["--bad-words", "x y"], {"bad_words": ["x y"]}),
    ],
)
def test_sampling_flags(words: list[str], expected: Given) -> None:
    assert run_group(SAMPLING, words) == {"max_tokens": 512, **expected}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--top-k", "many"], "--top-k"),
        (["--top-k", "1.5"], "--top-k"),
        (["--temperature", "warm"], "--temperature"),
        (["--stop-token-ids", "1,b"], "--stop-token-ids"),
        (["--logit-bias", "{"], "--logit-bias"),
        (["--logit-bias", "[1]"], "--logit-bias"),
        (["--logit-bias", '{"a": 1}'], "--logit-bias"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_the_name_of_the_flag(words: list[str], name: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        run_group(SAMPLING, words)
    assert name in caught.value.format_message()
    assert words[1].split(",")[-1] in caught.value.format_message()


class Everything(msgspec.Struct, kw_only=True):
    number: int = 1
    share: float | None = None
    name: str = "x"
    names: str | list[str] | None = None
    ids: list[int] | None = None
    table: dict[str, Any] | None = None
    is_on: bool = True


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "number": st.integers(-(2**40), 2**40),
            "share": st.floats(allow_nan=False),
            "name": st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])),
            "table": st.dictionaries(st.text(max_size=5), st.integers(0, 9), min_size=1),
            "is_on": st.booleans(),
        },
    )
)
def test_values_survive_the_command_line(values: Given) -> None:
    """`to_arguments` is how `motet bench startup` hands its options on; also a value that looks like a flag."""
    group = FlagGroup(panel="", struct=Everything, help={})
    assert run_group(group, to_arguments(values)) == values


def test_other_parameters_of_the_command_stay() -> None:
    @with_flags(engine=ENGINE)
    def command(word: Annotated[str, typer.Argument()], count: int = 3, *, engine: Given) -> None:
        """Says what it does."""

    names = list(inspect.signature(command).parameters)
    assert names[:2] == ["word", "count"]
    assert "engine" not in names
    assert "max_model_len" in names
    assert command.__doc__ == "Says what it does."


def test_spelling() -> None:
    assert spell("max_model_len") == "--max-model-len"
