"""Structured output in an engine: answers fit, whatever else runs; what goes wrong is one request's own error."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from motet import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from motet.core.errors import InputError
from motet.engine.engine import Engine
from tests.engine.driver import alone, answer_bits, answers, generate, greedy, make_engine, only, random_prompts

OPTIONS: dict[str, Any] = {
    "skip_tokenizer_init": False,
    "structured_outputs_config": {"disable_any_whitespace": True},
    "max_model_len": 256,
}
PROMPTS = random_prompts([5, 9, 3, 14, 7, 2], vocab_size=300)


@pytest.fixture(scope="module")
def folder(tiny_checkpoints: Any) -> Path:
    folder: Path = tiny_checkpoints("Llama")[0]
    return folder


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Engine]:
    engine = make_engine(folder, **OPTIONS)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared: Engine) -> Engine:
    assert shared.reset_prefix_cache()
    return shared


def structured(temperature: float = 1.0, max_tokens: int = 120, seed: int = 7, **kind: Any) -> SamplingParams:
    names = set(StructuredOutputsParams.__struct_fields__)
    mine = {name: kind.pop(name) for name in names & set(kind)}
    return SamplingParams(
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        structured_outputs=StructuredOutputsParams(**mine),
        **kind,
    )


def texts(engine: Engine, params: SamplingParams, prompts: list[list[int]] = PROMPTS) -> list[str]:
    """Answers that must have ended by themselves."""
    outputs = generate(engine, prompts, params)
    assert [(only(output).finish_reason, only(output).stop_reason) for output in outputs] == [("stop", None)] * len(
        prompts
    )
    return [only(output).text for output in outputs]


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["é", "日本", 'a"b', "😀"]}, "maxItems": 2},
        "home": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "boolean"},
                "next": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "nested": PERSON,
    "recursion": TREE,
    "any of": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 10, "maximum": 12}, {"const": {"a": [1]}}]},
    "unicode names": {
        "type": "object",
        "properties": {"naïve 日本": {"enum": [1, None, "Ω"]}},
        "required": ["naïve 日本"],
        "additionalProperties": False,
    },
    "pattern": {"type": "string", "pattern": "^(ab|[x-z]{2,3})+é$", "maxLength": 20},
    "number": {"type": "number", "exclusiveMinimum": -0.5, "maximum": 0.1},
}
BOUNDS: list[dict[str, Any]] = [
    {"maximum": 20_000_000_000, "minimum": -5},
    {"minimum": 2**31, "maximum": 2**31 + 7},
    {"minimum": -(2**33), "exclusiveMaximum": -(2**32)},
    {"minimum": 2**53 - 4, "maximum": 2**53 - 2},
    {"minimum": 0, "maximum": 2**53 + 3},
    {"minimum": 0, "exclusiveMaximum": 2**63},
    {"exclusiveMinimum": -(2**63), "maximum": 0},
    {"minimum": -(2**70), "maximum": 2**70},
    {"multipleOf": 7, "minimum": 0, "maximum": 5000},
]


def check_json(text: str, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("name", SCHEMAS)
def test_finished_answers_keep_to_the_schema(engine: Engine, name: str, temperature: float) -> None:
    params = structured(temperature, json=SCHEMAS[name], max_tokens=230)
    finished = [only(output) for output in generate(engine, PROMPTS, params)]
    ended = [answer.text for answer in finished if answer.finish_reason == "stop"]
    assert {answer.finish_reason for answer in finished} <= {"stop", "length"}
    assert ended or temperature == 0  # a random model may repeat itself for ever
    for text in ended:
        check_json(text, SCHEMAS[name])


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_bounds_of_integers(engine: Engine, bounds: dict[str, Any]) -> None:
    schema = {"type": "integer", **bounds}
    for seed in range(4):
        for text in texts(engine, structured(2.0, seed=seed, json=schema)):
            check_json(text, schema)


@pytest.mark.parametrize("minimum", [2**63, 2**53 + 1, 10**300])
def test_a_bound_that_cannot_be_kept_is_refused(engine: Engine, minimum: int) -> None:
    with pytest.raises(InputError, match="too far out to be exact"):
        generate(engine, PROMPTS, structured(json={"type": "integer", "minimum": minimum}))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_other_kinds(engine: Engine, temperature: float) -> None:
    assert set(texts(engine, structured(temperature, choice=["yes", "no", 'é\n"q\\']))) <= {"yes", "no", 'é\n"q\\'}
    for text in texts(engine, structured(temperature, regex="[a-c]{2}-(ü|[0-9]{3})")):
        assert re.fullmatch("[a-c]{2}-(ü|[0-9]{3})", text)
    for grammar in ('root ::= "a" b\nb ::= [0-9]{2,4}', 'start: "a" NUM\nNUM: /[0-9]{2,4}/'):
        for text in texts(engine, structured(temperature, grammar=grammar)):
            assert re.fullmatch("a[0-9]{2,4}", text)


def test_a_json_object(engine: Engine) -> None:
    for output in generate(engine, PROMPTS, structured(json_object=True)):
        if only(output).finish_reason == "stop":
            assert isinstance(json.loads(only(output).text), dict)
        assert only(output).text.startswith("{")


def test_structural_tags(engine: Engine) -> None:
    tag = {"structures": [{"begin": "<f>", "schema": {"enum": [1, 2]}, "end": "</f>"}], "triggers": ["<f"]}
    favour = {engine.facts.tokenizer.encode("<")[0]: 100.0, engine.facts.tokenizer.encode("f")[0]: 99.0}  # type: ignore[union-attr]
    params = structured(structural_tag=json.dumps(tag), logit_bias=favour, max_tokens=40)
    for output in generate(engine, PROMPTS, params):
        *pieces, rest = re.split("<f>[12]</f>", only(output).text)
        assert pieces
        assert not any("<f" in piece for piece in pieces)
        assert re.search("<f(?!>)|<f>(?![12]|$)", rest) is None or rest.endswith("<f")


def test_white_space_is_for_the_request_and_the_engine_to_forbid(folder: Path) -> None:
    schema = {"enum": [[1, 2]]}
    engine = make_engine(folder, **{**OPTIONS, "structured_outputs_config": None})
    try:
        space = {engine.facts.tokenizer.encode(" ")[0]: 100.0}  # type: ignore[union-attr]
        params = structured(0.0, json={"type": "array", "items": {"enum": [1]}}, logit_bias=space, max_tokens=9)
        strict = params.clone(structured_outputs={"json": schema, "disable_any_whitespace": True})
        loose, tight = generate(engine, PROMPTS[:2], [params, strict])
        assert "  " in only(loose).text
        assert only(tight).text == "[1,2]"
    finally:
        engine.close()


# In company -----------------------------------------------------------------------------------------------------------

MIXED = [
    structured(json=PERSON, max_tokens=60),
    greedy(max_tokens=30),
    structured(0.0, regex="[a-z]{10,20}"),
    SamplingParams(temperature=1.0, seed=1, max_tokens=30, ignore_eos=True, logprobs=2),
    structured(regex="[a-z ]{5,30}", presence_penalty=1.5, repetition_penalty=1.3, top_k=20, min_p=0.01),
    structured(json=TREE, logprobs=3, max_tokens=60),
]


def test_same_tokens_alone_and_in_a_crowd(engine: Engine) -> None:
    together = answers(generate(engine, PROMPTS, MIXED))
    assert together == alone(engine, PROMPTS, MIXED)
    assert together == answers(generate(engine, PROMPTS, MIXED))  # from the prefix cache


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_preempted_answers_are_the_same(folder: Path, engine: Engine, async_scheduling: bool) -> None:
    small = make_engine(
        folder, **{**OPTIONS, "max_model_len": 96}, num_blocks_override=26, async_scheduling=async_scheduling
    )
    try:
        outputs = generate(small, PROMPTS, MIXED)
        assert small.core.scheduler.stats.num_preemptions > 0
        assert [answer_bits(output) for output in outputs] == [
            answer_bits(output) for output in generate(engine, PROMPTS, MIXED)
        ]
    finally:
        small.close()


def test_several_answers_are_those_of_their_seeds(engine: Engine) -> None:
    params = structured(regex="[a-z]{8}[0-9]{2}")
    (output,) = generate(engine, [PROMPTS[0]], params.clone(n=3))
    each = [only(generate(engine, [PROMPTS[0]], params.clone(seed=7 + index))[0]).text for index in range(3)]
    assert [answer.text for answer in output.outputs] == each
    assert len(set(each)) == 3


def test_logprobs_are_those_of_the_free_model(engine: Engine) -> None:
    (free,) = generate(engine, [PROMPTS[0]], greedy(max_tokens=1, logprobs=5))
    (output,) = generate(engine, [PROMPTS[0]], structured(0.0, regex="[0-9]{4}", logprobs=5))
    answer, first = only(output), only(free).logprobs[0]  # type: ignore[index]
    assert len(answer.logprobs or ()) == len(answer.token_ids)
    assert next(iter(first.items())) in answer.logprobs[0].items()  # type: ignore[index]
    for token_id, entries in zip(answer.token_ids, answer.logprobs or ()):
        assert next(iter(entries)) == token_id


def test_a_stop_string_ends_it_sooner(engine: Engine) -> None:
    (output,) = generate(engine, [PROMPTS[0]], structured(regex="ab(cd)+e{50}", stop=["c"], logprobs=0))
    assert (only(output).text, only(output).stop_reason) == ("ab", "c")


def test_min_tokens_wait_for_no_more_than_the_grammar_has(engine: Engine) -> None:
    for text in texts(engine, structured(regex="a{1,9}", min_tokens=5)):
        assert 1 <= len(text) <= 9
    (output,) = generate(engine, [PROMPTS[0]], structured(0.0, regex="[ab]{0,40}", min_tokens=12))
    assert len(only(output).token_ids) >= 12
    assert set(texts(engine, structured(choice=["a"], min_tokens=50))) == {"a"}


def test_max_tokens_cuts(engine: Engine) -> None:
    (output,) = generate(engine, [PROMPTS[0]], structured(regex="[a-z]{40,}", max_tokens=5))
    assert (only(output).finish_reason, len(only(output).token_ids)) == ("length", 5)


def test_eos_that_ends_nothing_is_all_there_is(engine: Engine) -> None:
    (output,) = generate(engine, [PROMPTS[0]], structured(choice=["a"], max_tokens=4, ignore_eos=True))
    ids = only(output).token_ids
    assert (only(output).text, only(output).finish_reason, len(ids)) == ("a", "length", 4)
    assert set(ids[1:]) <= set(engine.facts.eos_token_ids)


# Errors ---------------------------------------------------------------------------------------------------------------


def test_allowed_ids_and_bad_words_narrow_it_further(engine: Engine) -> None:
    tokenizer = engine.facts.tokenizer
    assert tokenizer is not None
    a, b, x = (tokenizer.encode(char)[0] for char in "abx")
    mate = greedy(max_tokens=20)
    expected = alone(engine, [PROMPTS[1]], mate)
    cases = [
        (structured(0.0, regex="[abc]{3}", allowed_token_ids=[a, b, 2]), "stop"),
        (structured(1.0, regex="[abc]{3}", allowed_token_ids=[x]), "error"),
        (structured(0.0, regex="[abc]{3}", allowed_token_ids=[a, b]), "error"),  # EOS is not among them
        (structured(1.0, choice=["a", "b"], bad_words=["a", "b"]), "error"),
    ]
    for params, reason in cases:
        output, other = generate(engine, PROMPTS[:2], [params, mate])
        assert only(output).finish_reason == reason
        assert set(only(output).token_ids) <= {a, b, 2}
        if reason == "error":
            assert "structured_outputs" in str(only(output).stop_reason)
        assert answers([other]) == expected


BAD: list[dict[str, Any]] = [
    {"regex": "["},
    {"json": {"type": "nope"}},
    {"json": {"$ref": "#/missing"}},
    {"grammar": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(5000)) + 'r5000: "x"\n'},
    {"grammar": "start: nothing"},
]


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: str(kind)[:40])
def test_a_bad_grammar_is_refused_while_others_run(engine: Engine, kind: dict[str, Any]) -> None:
    mate = structured(0.0, regex="[a-z]{30}")
    expected = alone(engine, [PROMPTS[1]], mate)
    key = engine.add(engine.parse(PROMPTS[1], mate), mate)
    last: dict[str, Any] = dict(engine.step())
    start = time.perf_counter()
    with pytest.raises(InputError, match=r"cannot be used|too complex"):
        engine.parse(PROMPTS[0], structured(**kind))
    assert time.perf_counter() - start < 3
    while engine.has_work:
        last.update(engine.step())
        engine.check()
    assert answers([last[key]]) == expected


@pytest.mark.parametrize(
    "kind",
    [
        {"regex": "a{1,1000000}"},
        {"regex": "(.*a.{400}){30}"},
        {"regex": "((a{1,99}){1,99}){1,99}b"},
        {"regex": "(a|b)" * 10_000 + "(.*x.{1,1000}){1,1000}"},
        {"json": {"minItems": 10**9}},
    ],
    ids=lambda kind: str(kind)[:40],
)
def test_a_large_grammar_does_no_harm(engine: Engine, kind: dict[str, Any]) -> None:
    start = time.perf_counter()
    with suppress(InputError):
        generate(engine, PROMPTS[:2], structured(max_tokens=20, **kind))
    assert answers(generate(engine, PROMPTS[:2], greedy(max_tokens=5)))
    assert time.perf_counter() - start < 5


def test_what_an_engine_needs(folder: Path) -> None:
    engine = make_engine(folder)
    with pytest.raises(InputError, match="need a tokenizer"):
        engine.parse(PROMPTS[0], structured(regex="a"))
    engine.close()


def test_the_event_loop_goes_on_while_a_grammar_is_tried(folder: Path) -> None:
    engine = AsyncLLM.from_options(
        model=str(folder), dtype="float32", threads=1, kv_cache_memory_bytes=1 << 22, **OPTIONS
    )

    async def ticks(done: asyncio.Event) -> float:
        longest, last = 0.0, time.perf_counter()
        while not done.is_set():
            await asyncio.sleep(0)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        return longest

    async def main() -> tuple[str, float, float]:
        done = asyncio.Event()
        clock = asyncio.create_task(ticks(done))
        start = time.perf_counter()
        async for output in engine.generate("hello", structured(regex="[0-9]{5}"), "one"):
            text = only(output).text
        took = time.perf_counter() - start
        done.set()
        return text, await clock, took

    try:
        text, longest, took = asyncio.run(main())
        assert re.fullmatch("[0-9]{5}", text)
        assert longest < took / 2  # starting the helper is most of it
    finally:
        engine.shutdown()


@pytest.mark.weights
def test_a_real_model_writes_a_person() -> None:
    llm = LLM("smollm2", max_model_len=512, kv_cache_memory_bytes=1 << 26)
    try:
        params = structured(0.0, json=PERSON, disable_any_whitespace=True)
        (output,) = llm.chat(
            [{"role": "user", "content": "Describe Anna, who is 31, as JSON."}], params, use_tqdm=False
        )
        assert only(output).finish_reason == "stop"
        check_json(only(output).text, PERSON)
    finally:
        llm.shutdown()
