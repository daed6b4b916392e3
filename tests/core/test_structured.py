"""StructuredOutputsParams: what it takes, and what is refused before anything compiles."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from motet import SamplingParams, StructuredOutputsParams
from motet.core.config import EngineArgs
from motet.core.errors import ConfigError, InputError
from motet.core.structured import MAX_CHARACTERS, MAX_DEPTH


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth // 2):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "values",
    [{}, {"json_object": False}, {"regex": "a", "choice": ["a"]}, {"json": {}, "json_object": True}],
    ids=str,
)
def test_exactly_one_kind(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="exactly one of json, regex, choice"):
        StructuredOutputsParams(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"regex": 5}, "regex must be"),
        ({"regex": ""}, "regex must not be empty"),
        ({"regex": "\ud800"}, "not valid Unicode"),
        ({"regex": "(" * 60_000 + ")" * 60_000}, f"nested 60000 deep; at most {MAX_DEPTH}"),
        ({"regex": "a" * (MAX_CHARACTERS + 1)}, f"at most {MAX_CHARACTERS}"),
        ({"grammar": "start: " + "(" * 60_000 + '"a"' + ")" * 60_000}, "nested 60000 deep"),
        ({"choice": []}, "choice must be"),
        ({"choice": ["a", ""]}, "choice must be"),
        ({"json": "[1]"}, "must be a JSON object"),
        ({"json": [1]}, "must be a JSON object"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": {"type": object}}, "must be a JSON Schema"),
        ({"json": nested(5000)}, "json is nested"),
        ({"json": '{"properties":{"a":' * 5000 + "{}" + "}}" * 5000}, "nested 10001 deep"),
        ({"structural_tag": "x"}, "not valid JSON"),
        ({"json_object": True, "whitespace_pattern": "(" * 101}, "whitespace_pattern is nested 101 deep"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_bad_values(values: dict[str, Any], message: str) -> None:
    start = time.perf_counter()
    with pytest.raises(InputError, match=message) as caught:
        StructuredOutputsParams(**values)
    assert len(str(caught.value)) < 400
    assert time.perf_counter() - start < 1


def test_brackets_that_nest_nothing_do_not_count() -> None:
    many = "(" * 200
    StructuredOutputsParams(json={"enum": [many]})
    StructuredOutputsParams(regex=f"[{many}]" + r"\(" * 200)
    StructuredOutputsParams(grammar=f'start: "{many}"')
    StructuredOutputsParams(json=nested(MAX_DEPTH - 2))


def test_a_dict_will_do_and_unknown_fields_are_named() -> None:
    params = SamplingParams(structured_outputs={"choice": ("a", "b")})
    assert params.structured_outputs == StructuredOutputsParams(choice=["a", "b"])
    with pytest.raises(InputError, match="no field 'guided_json'"):
        SamplingParams(structured_outputs={"guided_json": "{}"})
    with pytest.raises(InputError, match="must be StructuredOutputsParams or a dict"):
        SamplingParams(structured_outputs="a+")


def test_a_change_after_construction_is_checked() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    params.structured_outputs.choice = ["b"]
    with pytest.raises(InputError, match="exactly one"):
        params.clone()


def test_params_can_be_encoded() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json={"type": "integer"}))
    assert json.loads(msgspec.json.encode(params)) == {"structured_outputs": {"json": {"type": "integer"}}}
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params


def test_engine_option() -> None:
    args = EngineArgs(model="m", structured_outputs_config={"backend": "guidance", "disable_any_whitespace": True})
    assert args.resolve().structured_outputs.disable_any_whitespace
    for values, message in [({"backend": "nope"}, "auto, guidance"), ({"nope": 1}, "no key 'nope'")]:
        with pytest.raises(ConfigError, match=message):
            EngineArgs(model="m", structured_outputs_config=values)
