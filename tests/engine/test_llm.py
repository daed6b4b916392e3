"""LLM: vLLM's offline API."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from motet import LLM, SamplingParams
from motet.core.errors import EngineDeadError, InputError, UnsupportedError
from motet.core.outputs import RequestOutput
from motet.runner.runner import Ticket
from tests.engine.driver import alone, answers, assert_idle, greedy, make_engine, only, random_prompts

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "threads": 1,
    "block_size": 4,
    "max_model_len": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 1 << 22,
}


@pytest.fixture(scope="module")
def folder(tiny_checkpoints: Any) -> Path:
    folder: Path = tiny_checkpoints("Llama")[0]
    return folder


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[LLM]:
    llm = LLM(str(folder), **OPTIONS)
    yield llm
    llm.shutdown()


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    assert shared.reset_prefix_cache()
    yield shared
    assert_idle(shared.engine)
    shared.engine.check()


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [only(output).text for output in outputs]


# Forms of prompts -----------------------------------------------------------------------------------------------------


def test_all_forms_of_one_prompt_get_the_same_answer(llm: LLM) -> None:
    text = "the quick brown fox"
    ids = llm.get_tokenizer().encode(text)
    forms: list[Any] = [
        text,
        [text],
        (text,),
        {"prompt": text},
        [{"prompt": text}],
        {"prompt_token_ids": ids},
        {"prompt": text, "prompt_token_ids": ids},
        ids,
        [ids],
        [tuple(ids)],
    ]
    found = [llm.generate(form, greedy()) for form in forms]
    assert all(len(outputs) == 1 for outputs in found)
    assert len({tuple(only(outputs[0]).token_ids) for outputs in found}) == 1
    assert [outputs[0].prompt for outputs in found] == [text] * 5 + [None, text] + [None] * 3
    assert all(outputs[0].prompt_token_ids == ids for outputs in found)


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    lengths = [30, 1, 17, 60, 5, 9, 2, 44, 3, 8, 21]
    prompts = random_prompts(lengths)
    params = [greedy(max_tokens=1 + (7 * i) % 13) for i in range(len(lengths))]
    expected = alone(make_engine(llm.engine.checkpoint.where), prompts, params)
    outputs = llm.generate(prompts, params)
    assert answers(outputs) == expected
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert all(output.finished for output in outputs)
    assert len({output.request_id for output in outputs}) == len(lengths)


def test_mixed_forms_in_one_list(llm: LLM) -> None:
    outputs = llm.generate(["Hello", [5, 6], {"prompt": "World"}, {"prompt_token_ids": [7]}], greedy(max_tokens=2))
    assert [output.prompt for output in outputs] == ["Hello", None, "World", None]


def test_priorities(folder: Path) -> None:
    llm = LLM(str(folder), **{**OPTIONS, "scheduling_policy": "priority", "max_num_seqs": 1})
    outputs = llm.generate([[5], [6], [7]], greedy(max_tokens=2), priority=[3, 1, 2])
    ends = [output.metrics.finished_time or 0.0 for output in outputs if output.metrics]
    assert ends[1] < ends[2] < ends[0]


# Chat -----------------------------------------------------------------------------------------------------------------

HELLO = [{"role": "user", "content": "Hello"}]
LONGER = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Why?"},
]


def test_chat_is_generate_of_the_rendered_conversation(llm: LLM) -> None:
    (output,) = llm.chat(HELLO, greedy())
    text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt == text
    assert output.prompt_token_ids == llm.get_tokenizer().encode(text, add_special_tokens=False)
    assert answers([output]) == answers(llm.generate(text, greedy()))
    several = llm.chat([HELLO, LONGER], greedy())
    assert answers(several) == answers([output, *llm.chat(LONGER, greedy())])


def test_options_of_chat(llm: LLM) -> None:
    (output,) = llm.chat(HELLO, greedy(max_tokens=1), add_generation_prompt=False)
    assert output.prompt == "<|im_start|>user\nHello<|im_end|>\n"
    final = [*HELLO, {"role": "assistant", "content": "Well"}]
    (output,) = llm.chat(final, greedy(max_tokens=1), add_generation_prompt=False, continue_final_message=True)
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>assistant\nWell")
    template = "{{ messages[0].content }}{{ extra }}"
    (output,) = llm.chat(HELLO, greedy(max_tokens=1), chat_template=template, chat_template_kwargs={"extra": "!"})
    assert output.prompt == "Hello!"


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ({"role": "user", "content": "Hello"}, {}),
        ("Hello", {}),
        ([{"content": "Hello"}], {}),
        ([{"role": "user", "content": 5}], {}),
        (HELLO, {"continue_final_message": True}),
        (HELLO, {"chat_template": "{{ broken"}),
        (HELLO, {"chat_template_content_format": "openai"}),
        (HELLO, {"lora_request": object}),
        ([{"role": "user", "content": "long " * 200}], {}),
    ],
    ids=str,
)
def test_what_chat_refuses(llm: LLM, messages: Any, options: dict[str, Any]) -> None:
    with pytest.raises((InputError, UnsupportedError)):
        llm.chat(messages, greedy(), **options)


def test_a_tokenizer_that_adds_bos_adds_one(folder: Path, tmp_path: Path) -> None:
    from tests.tokenizers_tiny import save_tiny_tokenizer

    save_tiny_tokenizer(tmp_path, "byte_fallback")
    llm = LLM(str(folder), **OPTIONS, tokenizer=str(tmp_path))
    tokenizer = llm.get_tokenizer()
    (output,) = llm.chat(HELLO, greedy(max_tokens=1))
    (templated,) = llm.generate(output.prompt or "", greedy(max_tokens=1))
    (plain,) = llm.generate("Hello", greedy(max_tokens=1))
    assert output.prompt_token_ids == templated.prompt_token_ids
    for ids in (output.prompt_token_ids, plain.prompt_token_ids):
        assert ids.count(tokenizer.bos_token_id or 0) == 1
        assert ids[0] == tokenizer.bos_token_id


# As with vLLM ---------------------------------------------------------------------------------------------------------


def test_a_typical_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["Hello, my name is", "The capital of France is"]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=1)
    llm = LLM(
        model=str(folder),
        dtype="float32",
        max_model_len=64,
        gpu_memory_utilization=0.2,
        enforce_eager=True,
        tensor_parallel_size=1,
        trust_remote_code=False,
        seed=0,
    )
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
    assert capsys.readouterr().out.count("Generated text") == 2
    assert all(len(output.outputs[0].token_ids) <= 16 for output in outputs)
    tokenizer = llm.get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"
    prompt = tokenizer.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)
    assert prompt.endswith("assistant\n")
    params = llm.get_default_sampling_params()
    params.max_tokens = 3
    params.temperature = 0
    again = llm.generate([prompt] * 2, [params, sampling_params], use_tqdm=False)
    assert len(again[0].outputs[0].token_ids) <= 3
    llm.shutdown()


def test_default_sampling_params_come_from_the_model(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.0, "max_new_tokens": 5, "top_k": 7}))
    llm = LLM(str(model), **OPTIONS)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=5, top_k=7)
    params = llm.get_default_sampling_params()
    params.max_tokens = 100
    (output,) = llm.generate([5, 6, 7])
    assert len(only(output).token_ids) <= 5, "a changed copy changes no default"
    assert answers([output]) == answers(llm.generate([5, 6, 7], SamplingParams(temperature=0, max_tokens=5)))


@pytest.mark.parametrize("name", ["encode", "embed", "classify", "score", "beam_search"])
def test_other_tasks_are_refused_by_name(llm: LLM, name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        getattr(llm, name)("Hello")


# Ctrl-C ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 2, 5, 11])
def test_ctrl_c_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    prompts = random_prompts([9] * 12)
    expected = answers(llm.generate(prompts, greedy()))
    wait, num_calls = Ticket.wait, 0

    def interrupted(ticket: Ticket) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == at + 1:
            raise KeyboardInterrupt
        return wait(ticket)

    with monkeypatch.context() as patch:
        patch.setattr(Ticket, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, greedy())
    assert num_calls <= at + 5, "what was launched is waited for, and nothing more is begun"
    assert_idle(llm.engine)
    assert not llm.engine.has_work
    assert answers(llm.generate(prompts, greedy())) == expected


def test_an_error_while_outputs_are_made_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.engine.step

    def broken() -> Any:
        if llm.engine.core.scheduler.num_running == 2:
            monkeypatch.setattr(llm.engine, "step", step)
            raise ZeroDivisionError
        return step()

    monkeypatch.setattr(llm.engine, "step", broken)
    with pytest.raises(ZeroDivisionError):
        llm.generate([[5], [6]], greedy())
    assert len(answers(llm.generate([[5], [6]], greedy()))) == 2


def test_a_dead_engine_stays_dead(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(str(folder), **OPTIONS)
    runner: Any = llm.engine.core.runner
    monkeypatch.setattr(runner.executor, "run", lambda batch: 1 / 0)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
            llm.generate([[5], [6]], greedy())
    llm.shutdown()


def test_after_shutdown_the_engine_says_so(folder: Path) -> None:
    llm = LLM(str(folder), **OPTIONS)
    llm.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        llm.generate([5], greedy())
    llm.shutdown()


# Sleep ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_after_a_sleep_the_answers_are_the_same_and_the_cache_is_empty(
    tiny_checkpoints: Any, family: str, level: int
) -> None:
    llm = LLM(str(tiny_checkpoints(family)[0]), **OPTIONS)
    prompts = random_prompts((20, 30))
    before = llm.generate(prompts, greedy())
    assert [output.num_cached_tokens for output in llm.generate(prompts, greedy())] == [16, 28]
    for _ in range(2):
        llm.sleep(level)
        with pytest.raises(InputError, match="sleeps; call wake_up"):
            llm.generate(prompts, greedy())
        llm.wake_up()
        after = llm.generate(prompts, greedy())
        assert answers(after) == answers(before)
        assert [output.num_cached_tokens for output in after] == [0, 0]
    assert_idle(llm.engine)


@pytest.mark.parametrize(("level", "keeps_weights"), [(1, True), (2, False)])
def test_what_a_sleep_gives_back(folder: Path, level: int, keeps_weights: bool) -> None:
    llm = LLM(str(folder), **OPTIONS)
    runner: Any = llm.engine.core.runner
    states, model = weakref.ref(runner.executor.states), weakref.ref(runner.head.model)
    del runner
    llm.sleep(level)
    gc.collect()
    assert states() is None
    assert (model() is not None) == keeps_weights


def test_sleeping_twice_and_waking_twice(llm: LLM) -> None:
    expected = answers(llm.generate([[5, 6]], greedy()))
    llm.wake_up()
    llm.sleep(1)
    llm.sleep(2)
    llm.wake_up()
    llm.wake_up()
    assert answers(llm.generate([[5, 6]], greedy())) == expected


def test_a_prompt_that_was_parsed_before_a_sleep_waits_for_its_end(llm: LLM) -> None:
    parsed = llm.engine.parse([5, 6], greedy())
    llm.sleep()
    with pytest.raises(InputError, match="sleeps"):
        llm.engine.add(parsed, greedy())
    llm.wake_up()
    assert len(only(llm.generate([5, 6], greedy())[0]).token_ids) == 12


def test_a_busy_engine_does_not_sleep(llm: LLM) -> None:
    key = llm.engine.add(llm.engine.parse([5], greedy()), greedy())
    with pytest.raises(InputError, match="1 requests are running"):
        llm.sleep()
    llm.engine.abort([key])
    with pytest.raises(InputError, match="sleep level must be 1 or 2, got 3"):
        llm.sleep(3)
    llm.sleep()
    llm.wake_up()
