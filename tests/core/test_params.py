"""SamplingParams: whatever makes no sense is one InputError, at construction."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from motet.core.errors import InputError
from motet.core.params import MAX_ANSWERS, RequestOutputKind, SamplingParams

FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_float_must_be_a_finite_number(name: str, value: float) -> None:
    with pytest.raises(InputError, match=name):
        SamplingParams(**{name: value})


def test_a_bias_must_be_a_number() -> None:
    with pytest.raises(InputError, match=r"logit_bias.*nan for token 5"):
        SamplingParams(logit_bias={4: 1.0, 5: math.nan})


@pytest.mark.parametrize(
    "values",
    [
        {"n": 0},
        {"n": -1},
        {"n": MAX_ANSWERS + 1},
        {"top_p": 0},
        {"top_p": 1.01},
        {"min_p": -0.1},
        {"top_k": -2},
        {"temperature": -0.1},
        {"repetition_penalty": 0},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"logprobs": -2},
        {"prompt_logprobs": -2},
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"seed": 2**64},
        {"seed": -(2**63) - 1},
        {"min_tokens": 5, "max_tokens": 4},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": "a", "detokenize": False},
        {"bad_words": [""]},
        {"allowed_token_ids": []},
    ],
    ids=str,
)
def test_values_out_of_range_and_contradictions(values: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        SamplingParams(**values)
    assert next(iter(values)) in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": "hot"},
        {"n": 1.5},
        {"n": True},
        {"n": None},
        {"top_k": "5"},
        {"stop": 5},
        {"stop": [5]},
        {"stop": b"end"},
        {"stop_token_ids": 5},
        {"stop_token_ids": ["5"]},
        {"logit_bias": {"5": 1.0}},
        {"logit_bias": [(5, 1.0)]},
        {"allowed_token_ids": [1, 2.5]},
        {"bad_words": "one word"},
        {"ignore_eos": "yes"},
        {"seed": 1.0},
        {"max_tokens": print},
        {"output_kind": "delta"},
    ],
    ids=str,
)
def test_values_of_another_type(values: dict[str, Any]) -> None:
    ((name, value),) = values.items()
    with pytest.raises(InputError, match=f"^{name} must be .*, got ") as caught:
        SamplingParams(**values)
    assert repr(value)[:20] in str(caught.value)


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(InputError) as caught:
        SamplingParams(allowed_token_ids=[*range(10_000), "x"])  # type: ignore[list-item]
    assert len(str(caught.value)) < 200


def test_values_that_mean_the_same_are_taken() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        seed=np.int64(7),  # type: ignore[arg-type]
        stop=("a", "b"),  # type: ignore[arg-type]
        stop_token_ids=[np.int32(3)],  # type: ignore[list-item]
        logit_bias={1: 2},
        output_kind=2,  # type: ignore[arg-type]
    )
    assert params == SamplingParams(
        temperature=0.5,
        seed=7,
        stop=["a", "b"],
        stop_token_ids=[3],
        logit_bias={1: 2.0},
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    assert [type(value) for value in (params.temperature, params.seed, params.stop_token_ids[0])] == [float, int, int]
    assert params.output_kind is RequestOutputKind.FINAL_ONLY


def test_the_clients_lists_are_copied() -> None:
    ids = [1, 2]
    params = SamplingParams(stop_token_ids=ids)
    ids.append(3)
    assert params.stop_token_ids == [1, 2]


def test_a_clone_is_checked_again() -> None:
    params = SamplingParams()
    params.top_p = 0.0  # as vLLM's, parameters can be changed
    with pytest.raises(InputError, match="top_p"):
        params.clone()
    assert SamplingParams(temperature=0.3).clone(seed=1) == SamplingParams(temperature=0.3, seed=1)


def test_encoding_keeps_everything() -> None:
    params = SamplingParams(logit_bias={1: 2.0}, stop=["x"], output_kind=RequestOutputKind.DELTA, seed=-(2**63))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.repetition_penalty) == (16, 0, 1.0)
    assert params.skip_special_tokens
    assert params.detokenize
    assert not params.include_stop_str_in_output
    assert params.output_kind is RequestOutputKind.CUMULATIVE


@pytest.mark.parametrize(("temperature", "is_greedy"), [(0.0, True), (1e-6, True), (1e-4, False), (1.0, False)])
def test_greedy(temperature: float, is_greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is is_greedy
