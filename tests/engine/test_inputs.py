"""Whatever cannot be served is one clear InputError at once, and nothing of it stays behind."""

from __future__ import annotations

from typing import Any

import pytest

from motet.core.errors import InputError, UnsupportedError
from motet.core.params import SamplingParams
from motet.engine.engine import Engine
from motet.engine.llm import LLM
from tests.engine.driver import answers, assert_idle, generate, greedy, make_engine, only, random_prompts

MAX_LEN = 32
VOCAB = 512
EOS = 2


@pytest.fixture(scope="module")
def llm(tiny_checkpoints: Any) -> LLM:
    folder, _ = tiny_checkpoints("Llama")
    options: dict[str, Any] = {"block_size": 4, "max_num_batched_tokens": 64, "kv_cache_memory_bytes": 1 << 24}
    return LLM(str(folder), dtype="float32", threads=1, max_model_len=MAX_LEN, max_num_seqs=16, **options)


@pytest.fixture
def engine(llm: LLM) -> Any:
    """The LLM's engine; after each test nothing is left and a plain request is answered."""
    yield llm.engine
    assert_idle(llm.engine)
    assert len(only(generate(llm.engine, [[5, 6, 7]], greedy(max_tokens=3))[0]).token_ids) == 3


def refused(engine: Engine, prompt: Any, params: SamplingParams | None = None) -> str:
    with pytest.raises(InputError) as caught:
        engine.parse(prompt, params or SamplingParams())
    return str(caught.value)


EMPTY = ["", [], (), {"prompt": ""}, {"prompt_token_ids": []}, {"prompt": "", "prompt_token_ids": []}]


@pytest.mark.parametrize("prompt", EMPTY, ids=str)
def test_an_empty_prompt(engine: Engine, llm: LLM, prompt: Any) -> None:
    assert "at least one" in refused(engine, prompt)
    for prompts in ([prompt], ["Hello", prompt]):
        with pytest.raises(InputError, match="at least one"):
            llm.generate(prompts)


def test_no_prompts_at_all_are_no_answers(engine: Engine, llm: LLM) -> None:
    assert llm.generate([]) == []
    with pytest.raises(InputError, match="at least one"):
        llm.generate("")


@pytest.mark.parametrize("messages", [[], [[]], [[{"role": "user", "content": "Hi"}], []]], ids=str)
def test_an_empty_conversation(engine: Engine, llm: LLM, messages: Any) -> None:
    with pytest.raises(InputError, match="messages is empty"):
        llm.chat(messages)


def test_an_empty_message_is_a_message(engine: Engine, llm: LLM) -> None:
    """The template's own words are a prompt."""
    (output,) = llm.chat([{"role": "user", "content": ""}], greedy(max_tokens=2))
    assert len(only(output).token_ids) == 2


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        2.5,
        b"bytes",
        [1, "two"],
        [1, 2.0],
        [True],
        {"prompt": 5},
        {"prompt": None},
        {},
        {"prompt_token_ids": None},
        {"prompt_token_ids": "abc"},
        {"prompt_token_ids": b"abc"},
        {"prompt_token_ids": [1, None]},
        {"prompt": ["Hi"], "prompt_token_ids": [1]},
        "lone surrogate \ud800",
    ],
    ids=repr,
)
def test_a_prompt_of_another_shape(engine: Engine, llm: LLM, prompt: Any) -> None:
    refused(engine, prompt)
    with pytest.raises(InputError):
        llm.generate(prompt)
    with pytest.raises(InputError):
        llm.generate(["Hello", prompt])


def test_unknown_prompt_keys_are_named(engine: Engine) -> None:
    with pytest.raises(UnsupportedError, match="multi_modal_data"):
        engine.parse({"prompt": "Hi", "multi_modal_data": {}}, SamplingParams())


def test_keys_without_a_value_are_as_if_left_out(engine: Engine) -> None:
    parsed = engine.parse({"prompt": None, "prompt_token_ids": [1, 2], "cache_salt": None}, SamplingParams())
    assert (parsed.text, parsed.token_ids, parsed.cache_salt) == (None, [1, 2], None)
    parsed = engine.parse({"prompt": "Hello", "prompt_token_ids": None}, SamplingParams())
    assert parsed.token_ids == engine.facts.tokenizer.encode("Hello")  # type: ignore[union-attr]


@pytest.mark.parametrize("salt", [5, "", b"x", ["x"], "\ud800"], ids=repr)
def test_a_cache_salt_is_text(engine: Engine, salt: Any) -> None:
    assert "cache_salt" in refused(engine, {"prompt": "Hi", "cache_salt": salt})


OUTSIDE = [-1, VOCAB, VOCAB + 5, 2**31, 2**63, 2**64, -(2**63)]


@pytest.mark.parametrize("token_id", OUTSIDE)
def test_prompt_ids_outside_the_vocabulary(engine: Engine, token_id: int) -> None:
    assert f"{token_id} is outside the vocabulary (0 to 511)" in refused(engine, [1, token_id])


@pytest.mark.parametrize("token_id", OUTSIDE)
@pytest.mark.parametrize("min_tokens", [0, 2])
@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_parameter_ids_outside_the_vocabulary(engine: Engine, name: str, min_tokens: int, token_id: int) -> None:
    value = {token_id: 1.0} if name == "logit_bias" else [5, token_id]
    message = refused(engine, [1], SamplingParams(min_tokens=min_tokens, **{name: value}))  # type: ignore[arg-type]
    assert message.startswith(f"{name}: id {token_id} is outside the vocabulary")


def test_the_last_id_of_the_vocabulary_is_inside(engine: Engine) -> None:
    last = VOCAB - 1
    params = greedy(
        max_tokens=3, stop_token_ids=[0], min_tokens=1, allowed_token_ids=[last, 0], logit_bias={last: 100.0}
    )
    assert only(generate(engine, [[last]], params)[0]).token_ids == [last] * 3


# Length ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [MAX_LEN, MAX_LEN + 1, 10 * MAX_LEN])
def test_a_prompt_that_leaves_no_room(engine: Engine, length: int) -> None:
    message = refused(engine, [7] * length)
    assert f"{length} tokens" in message
    assert f"context length is {MAX_LEN}" in message


@pytest.mark.parametrize("max_tokens", [1, 16, None])
def test_the_longest_prompt_gets_one_token(engine: Engine, max_tokens: int | None) -> None:
    (output,) = generate(engine, [[7] * (MAX_LEN - 1)], greedy(max_tokens=max_tokens))
    assert (len(only(output).token_ids), only(output).finish_reason) == (1, "length")


@pytest.mark.parametrize("length", [MAX_LEN + 1, 10 * MAX_LEN])
@pytest.mark.parametrize(("limit", "kept"), [(-1, MAX_LEN - 1), (5, 5), (1, 1), (MAX_LEN - 1, MAX_LEN - 1)])
def test_truncation_keeps_the_end(engine: Engine, length: int, limit: int, kept: int) -> None:
    ids = [i % VOCAB for i in range(length)]
    parsed = engine.parse(ids, SamplingParams(truncate_prompt_tokens=limit))
    assert parsed.token_ids == ids[-kept:]
    (output,) = generate(engine, [ids], greedy(truncate_prompt_tokens=limit, max_tokens=2))
    assert output.prompt_token_ids == ids[-kept:]


def test_truncation_leaves_short_prompts_alone_and_has_a_limit(engine: Engine) -> None:
    assert engine.parse([1, 2, 3], SamplingParams(truncate_prompt_tokens=5)).token_ids == [1, 2, 3]
    assert engine.parse([1, 2, 3], SamplingParams(truncate_prompt_tokens=-1)).token_ids == [1, 2, 3]
    message = refused(engine, [1], SamplingParams(truncate_prompt_tokens=MAX_LEN + 1))
    assert f"={MAX_LEN + 1}" in message
    assert str(MAX_LEN) in message


# Masks ----------------------------------------------------------------------------------------------------------------


def word_of(engine: Engine, *token_ids: int) -> str:
    """A text that is encoded as just these tokens."""
    tokenizer = engine.facts.tokenizer
    assert tokenizer is not None
    word = tokenizer.decode(token_ids)
    assert tokenizer.bad_word_ids(word) == [list(token_ids)]
    return word


A, B = ord("!") - 33 + 3, ord('"') - 33 + 3  # single bytes of the byte-level alphabet


def test_bad_words_that_forbid_all_that_is_allowed(engine: Engine) -> None:
    words = [word_of(engine, A), word_of(engine, B)]
    for temperature in (0.0, 1.0):
        params = SamplingParams(allowed_token_ids=[A, B], bad_words=words, temperature=temperature)
        assert "bad_words forbid every token of allowed_token_ids" in refused(engine, [1], params)
    params = greedy(allowed_token_ids=[A, B], bad_words=words[:1], max_tokens=4)
    assert only(generate(engine, [[1]], params)[0]).token_ids == [B] * 4


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_that_forbids_all_that_is_allowed(engine: Engine, ignore_eos: bool) -> None:
    params = SamplingParams(
        allowed_token_ids=[EOS, 9], stop_token_ids=[9], min_tokens=1, ignore_eos=ignore_eos, temperature=0
    )
    if ignore_eos:  # then EOS is a token like others
        assert set(only(generate(engine, [[1]], params)[0]).token_ids) == {EOS}
    else:
        assert "min_tokens" in refused(engine, [1], params)
        params.min_tokens = 0
        assert only(generate(engine, [[1]], params)[0]).token_ids in ([EOS], [9])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_runs_out_of_tokens_ends_alone(engine: Engine, temperature: float) -> None:
    """Allowed is one token, and a bad word forbids it twice in a row: nobody could know before."""
    mates = random_prompts((5, 9, 3))
    mate_params = SamplingParams(temperature=1.0, seed=3, max_tokens=6, ignore_eos=True)
    expected = answers(generate(engine, mates, mate_params))
    bad = SamplingParams(
        allowed_token_ids=[A], bad_words=[word_of(engine, A, A)], max_tokens=8, temperature=temperature, logprobs=0
    )
    outputs = generate(engine, [[1, 2], *mates], [bad, mate_params, mate_params, mate_params])
    failed = only(outputs[0])
    assert (failed.token_ids, failed.finish_reason) == ([A], "error")
    assert "no token is left" in str(failed.stop_reason)
    assert failed.logprobs is not None
    assert len(failed.logprobs) == 1
    assert answers(outputs[1:]) == expected
    assert {only(output).finish_reason for output in outputs[1:]} == {"length"}


# Together -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["", [VOCAB], [7] * MAX_LEN, None], ids=str)
def test_one_bad_prompt_of_a_list_stops_the_call_before_anything_runs(llm: LLM, engine: Engine, bad: Any) -> None:
    num_steps = engine.core.scheduler._num_steps
    with pytest.raises(InputError):
        llm.generate(["Hello", bad, "World"], greedy())
    assert engine.core.scheduler._num_steps == num_steps


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"sampling_params": {"temperature": 0}}, "must be SamplingParams"),
        ({"sampling_params": [greedy()]}, "2 prompts, but 1 sampling_params"),
        ({"sampling_params": [greedy(), None]}, "must be SamplingParams"),
        ({"sampling_params": 5}, "must be SamplingParams"),
        ({"priority": [1]}, "2 prompts, but 1 priorities"),
        ({"priority": [1, "high"]}, "priority must be an int, got 'high'"),
        ({"lora_request": "x"}, "must be a LoRARequest, got 'x'"),
    ],
    ids=str,
)
def test_wrong_arguments_of_generate(llm: LLM, engine: Engine, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=complaint):
        llm.generate(["Hello", "World"], **given)


def test_parameters_that_were_changed_after_construction_are_checked(llm: LLM, engine: Engine) -> None:
    params = SamplingParams()
    params.temperature = "hot"  # type: ignore[assignment]
    with pytest.raises(InputError, match="temperature"):
        llm.generate("Hello", params)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_engine_gives(engine: Engine, name: str) -> None:
    for wanted in (21, -1):
        message = refused(engine, [1], SamplingParams(**{name: wanted}))
        assert message.startswith(f"{name}={wanted} is more than max_logprobs=20")


def test_without_a_tokenizer_text_is_refused_and_ids_are_served(tiny_checkpoints: Any) -> None:
    engine = make_engine(tiny_checkpoints("Llama")[0])
    for prompt, params in [
        ("Hello", SamplingParams()),
        ([1], SamplingParams(stop="x")),
        ([1], SamplingParams(bad_words=["x"])),
    ]:
        assert "skip_tokenizer_init" in refused(engine, prompt, params)
    (output,) = generate(engine, [[1, 2]], greedy(max_tokens=2))
    assert (only(output).text, len(only(output).token_ids)) == ("", 2)


def test_huge_but_harmless_numbers(engine: Engine) -> None:
    params = SamplingParams(
        top_k=2**70, max_tokens=2**70, min_tokens=2**69, logit_bias={3: float("inf"), 4: -float("inf")}, seed=2**64 - 1
    )
    (output,) = generate(engine, [[1]], params)
    assert (len(only(output).token_ids), only(output).finish_reason) == (MAX_LEN - 1, "length")
    assert set(only(output).token_ids) == {3}
