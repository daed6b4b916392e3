"""What a client receives: text, token ids, logprobs and reasons that end at the same token, in every output kind."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from motet.core.errors import LoadError
from motet.core.outputs import CompletionOutput, RequestOutput
from motet.core.params import RequestOutputKind, SamplingParams
from motet.core.result import Delta, FinishReason, TokenLogprobs
from motet.engine.engine import Engine
from motet.engine.outputs import OutputProcessor
from motet.text.tokenizer import Tokenizer
from tests.engine.driver import Scripted, answers, generate, greedy, make_engine, model_of, only, random_prompts, stream
from tests.tokenizers_tiny import save_tiny_tokenizer

DELTA, CUMULATIVE, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY
KINDS = (DELTA, CUMULATIVE, FINAL_ONLY)
EOS = 2
PROMPT = "Hello, how are you?"


@pytest.fixture(scope="module", params=[True, False], ids=["overlap", "one by one"])
def engine(request: pytest.FixtureRequest, tiny_checkpoints: Any) -> Engine:
    folder, _ = tiny_checkpoints("Llama")
    return make_engine(folder, skip_tokenizer_init=False, async_scheduling=request.param)


@pytest.fixture(scope="module")
def fallback_engine(tiny_checkpoints: Any, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("fallback")
    save_tiny_tokenizer(folder, "byte_fallback")
    return make_engine(tiny_checkpoints("Llama")[0], skip_tokenizer_init=False, tokenizer=str(folder))


def tokenizer_of(engine: Engine) -> Tokenizer:
    assert engine.facts.tokenizer is not None
    return engine.facts.tokenizer


def joined(outputs: Sequence[RequestOutput]) -> dict[int, CompletionOutput]:
    """DELTA outputs put together again, by answer."""
    whole: dict[int, CompletionOutput] = {}
    for output in outputs:
        for part in output.outputs:
            if part.index not in whole:
                whole[part.index] = part
                continue
            before = whole[part.index]
            assert before.finish_reason is None, "an answer goes on after its end"
            before.text += part.text
            before.token_ids += part.token_ids
            if before.logprobs is not None and part.logprobs is not None:
                before.logprobs += part.logprobs
            before.cumulative_logprob = part.cumulative_logprob
            before.finish_reason, before.stop_reason = part.finish_reason, part.stop_reason
    return whole


def scripted(
    engine: Engine, text_or_ids: str | Sequence[int], params: SamplingParams, prompt: Any = PROMPT
) -> dict[int, CompletionOutput]:
    """The answer to a model that says just this, the same in all three kinds."""
    tokenizer = tokenizer_of(engine)
    ids = tokenizer.encode(text_or_ids, add_special_tokens=False) if isinstance(text_or_ids, str) else text_or_ids
    prompt_len = len(engine.parse(prompt, SamplingParams()).token_ids)
    found = []
    for kind in KINDS:
        with model_of(engine, Scripted(prompt_len, ids)):
            outputs = stream(engine, prompt, params.clone(output_kind=kind))
        assert outputs[-1].finished
        assert not any(output.finished for output in outputs[:-1])
        assert len(outputs) == 1 or kind is not FINAL_ONLY
        found.append(joined(outputs) if kind is DELTA else {part.index: part for part in outputs[-1].outputs})
    assert found[0] == found[1] == found[2]
    return found[0]


def script(engine: Engine, text_or_ids: str | Sequence[int], **params: Any) -> CompletionOutput:
    (answer,) = scripted(engine, text_or_ids, greedy(**{"max_tokens": 30, **params})).values()
    return answer


# n answers ------------------------------------------------------------------------------------------------------------


def test_n_answers_are_n_requests_with_seeds_that_follow(engine: Engine) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=11, max_tokens=7, ignore_eos=True)
    (output,) = generate(engine, [PROMPT], params)
    each = generate(engine, [PROMPT] * 3, [params.clone(n=1, seed=11 + i) for i in range(3)])
    assert [part.index for part in output.outputs] == [0, 1, 2]
    for part, single in zip(output.outputs, each, strict=True):
        assert (part.token_ids, part.text) == (only(single).token_ids, only(single).text)
    assert len({tuple(part.token_ids) for part in output.outputs}) == 3


def test_without_a_seed_answers_differ_and_the_engine_seed_decides(tiny_checkpoints: Any) -> None:
    params = SamplingParams(n=4, temperature=1.0, max_tokens=8, ignore_eos=True)
    runs = []
    for seed in (0, 0, 1):
        engine = make_engine(tiny_checkpoints("Llama")[0], seed=seed)
        runs.append([part.token_ids for output in generate(engine, [[5], [5]], params) for part in output.outputs])
    assert len({tuple(ids) for ids in runs[0]}) == 8
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


# Kinds ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
def test_all_output_kinds_tell_the_same(engine: Engine, n: int) -> None:
    params = SamplingParams(n=n, temperature=1.0, seed=5, max_tokens=12, logprobs=2, prompt_logprobs=1, stop=["e", "t"])
    found = []
    for kind in KINDS:
        outputs = stream(engine, PROMPT, params.clone(output_kind=kind))
        shown = [output.prompt_logprobs for output in outputs]
        assert shown[0] is not None
        assert len(shown[0]) == len(outputs[0].prompt_token_ids)
        assert None not in shown[0][1:], "prompt logprobs come with the first token"
        if kind is DELTA:
            assert shown[1:] == [None] * (len(shown) - 1), "and only once"
            found.append((joined(outputs), shown[0]))
        else:
            found.append(({part.index: part for part in outputs[-1].outputs}, outputs[-1].prompt_logprobs))
        if kind is CUMULATIVE:
            for before, after in pairwise(outputs):
                for old, new in zip(before.outputs, after.outputs, strict=True):
                    assert new.text.startswith(old.text)
                    assert new.token_ids[: len(old.token_ids)] == old.token_ids
    assert found[0] == found[1] == found[2]


def test_outputs_already_given_do_not_change(engine: Engine) -> None:
    outputs = stream(engine, PROMPT, greedy(max_tokens=5, logprobs=1))
    assert [len(only(output).token_ids) for output in outputs] == [1, 2, 3, 4, 5]
    assert [len(only(output).logprobs or ()) for output in outputs] == [1, 2, 3, 4, 5]


# Ends -----------------------------------------------------------------------------------------------------------------

TEXT = "the quick brown fox jumps over the lazy dog"


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("stop", "first"),
    [("fox", "fox"), (["zebra", "o", "fox"], "o"), ("k b", "k b"), (["dog", "jumps over"], "jumps over"), ("t", "t")],
)
def test_a_stop_string_ends_everything_at_the_token_that_completes_it(
    engine: Engine, stop: Any, first: str, include: bool
) -> None:
    ids = tokenizer_of(engine).encode(TEXT, add_special_tokens=False)
    answer = script(engine, TEXT, stop=stop, include_stop_str_in_output=include, logprobs=0)
    end = TEXT.index(first) + (len(first) if include else 0)
    assert answer.text == TEXT[:end]
    # The shortest run of tokens whose text holds the stop string.
    num_tokens = next(n for n in range(1, len(ids) + 1) if first in tokenizer_of(engine).decode(ids[:n]))
    assert answer.token_ids == ids[:num_tokens]
    assert [next(iter(entry)) for entry in answer.logprobs or ()] == ids[:num_tokens]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", first)


def test_after_a_stop_string_nothing_more_is_computed(engine: Engine) -> None:
    before = engine.core.scheduler._num_steps
    answer = script(engine, TEXT, stop="quick", max_tokens=None)
    num_runs = len(KINDS)
    assert engine.core.scheduler._num_steps - before <= num_runs * (len(answer.token_ids) + 3)


@pytest.mark.parametrize("finish", [None, FinishReason.LENGTH])
def test_tokens_that_come_in_one_burst_end_at_the_stop_as_well(engine: Engine, finish: FinishReason | None) -> None:
    tokenizer = tokenizer_of(engine)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    processor = OutputProcessor(tokenizer)
    params = SamplingParams(stop="quick", logprobs=0)
    processor.add("0", "mine", engine.parse(PROMPT, params), params, arrival=0.0)
    entries = tuple(TokenLogprobs([token_id], [-1.0], 1) for token_id in ids)
    (output,), stops = processor.process([Delta("0#0", tuple(ids), entries, finish_reason=finish)])
    answer = only(output[1])
    num_tokens = len(answer.token_ids)
    assert num_tokens < len(ids)
    assert tokenizer.decode(ids[: num_tokens - 1]) in "the quick" in tokenizer.decode(ids[:num_tokens])
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("the ", "stop", "quick")
    assert (answer.token_ids, len(answer.logprobs or ())) == (ids[:num_tokens], num_tokens)
    assert answer.cumulative_logprob == -num_tokens
    assert stops == ([] if finish else [("0#0", "quick")]), "the scheduler is told of an end that it does not know"
    assert processor.num_open == 0
    assert processor.process([Delta("0#0", (5,))]) == ([], []), "what was under way meanwhile is nobody's"


def test_what_could_begin_a_stop_string_is_held_back_and_given_when_it_does_not(engine: Engine) -> None:
    prompt_len = len(engine.parse(PROMPT, SamplingParams()).token_ids)
    ids = tokenizer_of(engine).encode(TEXT, add_special_tokens=False)
    with model_of(engine, Scripted(prompt_len, ids)):
        params = greedy(stop="quick brown bear", max_tokens=len(ids), output_kind=DELTA)
        outputs = stream(engine, PROMPT, params)
    seen = ""
    for output in outputs[:-1]:
        seen += only(output).text
        assert not seen.endswith(("quick", "quick b", "quick brown"))
    assert seen + only(outputs[-1]).text == TEXT
    with model_of(engine, Scripted(prompt_len, ids)):
        (cut,) = generate(engine, [PROMPT], greedy(stop="quick brown bear", max_tokens=4))
    assert only(cut).text == tokenizer_of(engine).decode(ids[:4]), "an answer that ends early shows what was held back"


def test_of_a_stop_and_a_length_at_the_same_token_the_stop_counts(engine: Engine) -> None:
    ids = tokenizer_of(engine).encode(TEXT, add_special_tokens=False)
    whole = script(engine, TEXT, max_tokens=len(ids), stop="dog")
    assert (whole.finish_reason, whole.stop_reason, whole.token_ids) == ("stop", "dog", ids)
    assert whole.text == TEXT.removesuffix("dog")


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_is_counted_and_shown_only_when_asked_for(engine: Engine, include: bool) -> None:
    tokenizer = tokenizer_of(engine)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    answer = script(engine, TEXT, stop_token_ids=[ids[5]], include_stop_str_in_output=include, logprobs=1)
    num_tokens = ids.index(ids[5]) + 1
    assert answer.token_ids == ids[:num_tokens]
    assert answer.text == tokenizer.decode(ids[: num_tokens - (not include)])
    assert len(answer.logprobs or ()) == num_tokens
    assert (answer.finish_reason, answer.stop_reason) == ("stop", ids[5])


def test_eos_ends_an_answer_without_a_stop_reason(engine: Engine) -> None:
    ids = [*tokenizer_of(engine).encode("quick", add_special_tokens=False), EOS, 50, 51]
    answer = script(engine, ids, ignore_eos=False, logprobs=0)
    assert (answer.text, answer.token_ids) == ("quick", ids[:-2])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    ignored = script(engine, ids, ignore_eos=True, max_tokens=len(ids))
    assert (ignored.token_ids, ignored.finish_reason) == (ids, "length")


def test_every_eos_of_the_generation_config_ends_an_answer(tiny_checkpoints: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoints("Llama")[0], folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9], "temperature": 0.0}))
    engine = make_engine(folder, skip_tokenizer_init=False)
    assert engine.facts.eos_token_ids == {2, 7, 9}
    assert engine.default_params == SamplingParams(temperature=0.0)
    for eos in (2, 7, 9):
        answer = script(engine, [50, eos, 51], ignore_eos=False)
        assert (answer.token_ids, answer.finish_reason, answer.stop_reason) == ([50, eos], "stop", None)


@pytest.mark.parametrize("logit_bias", [{EOS: 100.0}, {9: 100.0}])
def test_min_tokens_holds_every_stop_token_off(engine: Engine, logit_bias: dict[int, float]) -> None:
    params = greedy(
        logit_bias=logit_bias, min_tokens=4, stop_token_ids=[9], ignore_eos=False, max_tokens=8, temperature=1.0, seed=1
    )
    answer = only(generate(engine, [PROMPT], params)[0])
    (wanted,) = logit_bias
    assert len(answer.token_ids) == 5
    assert answer.token_ids[-1] == wanted
    assert not {EOS, 9} & set(answer.token_ids[:-1])


def test_min_tokens_also_holds_for_stop_strings(engine: Engine) -> None:
    ids = tokenizer_of(engine).encode(TEXT, add_special_tokens=False)
    answer = script(engine, TEXT, stop="e", min_tokens=5)
    assert len(answer.token_ids) > 5
    assert answer.text.count("e") >= tokenizer_of(engine).decode(ids[:5]).count("e") > 0
    assert TEXT[len(answer.text)] == "e"


def test_without_max_tokens_the_context_is_the_limit(engine: Engine) -> None:
    (output,) = generate(engine, [[5] * 100], greedy(max_tokens=None))
    assert (len(only(output).token_ids), only(output).finish_reason) == (28, "length")


def test_bad_words_are_never_completed(engine: Engine) -> None:
    letters = tokenizer_of(engine).encode("qzxj", add_special_tokens=False)
    assert len(letters) == 4
    params = SamplingParams(
        temperature=1.5, seed=2, max_tokens=100, allowed_token_ids=letters, logit_bias={letters[1]: 9}
    )
    free = only(generate(engine, [PROMPT], params)[0]).text
    assert "zz" in free
    bound = only(generate(engine, [PROMPT], params.clone(bad_words=["zz", "qx", "j"]))[0]).text
    assert not any(word in bound for word in ("zz", "qx", "j"))
    assert {"z", "q", "x"} <= set(bound)


# Text -----------------------------------------------------------------------------------------------------------------


def test_special_tokens_are_shown_when_asked_for(engine: Engine) -> None:
    ids = [*tokenizer_of(engine).encode("dog", add_special_tokens=False), 1, 0]
    assert script(engine, ids, max_tokens=len(ids)).text == "dog"
    shown = script(engine, ids, max_tokens=len(ids), skip_special_tokens=False)
    assert shown.text == "dog<|im_start|><|endoftext|>"


def test_without_detokenising_there_are_ids_only(engine: Engine) -> None:
    ids = tokenizer_of(engine).encode(TEXT, add_special_tokens=False)
    answer = script(engine, TEXT, detokenize=False, max_tokens=6, logprobs=0)
    assert (answer.text, answer.token_ids) == ("", ids[:6])


PROMPTS = ["Hello", "日本", [60, 70, 80]]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_streamed_text_of_random_tokens_is_the_text_of_all(
    engine: Engine, fallback_engine: Engine, kind: str, seed: int
) -> None:
    """Characters that span tokens, invalid bytes, ids without a token, and an end in mid-character among them."""
    one = engine if kind == "byte_level" else fallback_engine
    chance = random.Random(seed)
    tokenizer = tokenizer_of(one)
    ids = [chance.randrange(3, 420) for _ in range(24)]
    emoji = tokenizer.encode("🚀漢", add_special_tokens=False)
    ids[4:4] = emoji
    ids += emoji[: chance.randint(1, len(emoji) - 1)]
    prompt = PROMPTS[seed % 2]
    (answer,) = scripted(one, ids, greedy(max_tokens=len(ids)), prompt).values()
    before = one.parse(prompt, SamplingParams()).token_ids
    assert answer.token_ids == ids
    assert tokenizer.decode(before) + answer.text == tokenizer.decode(before + ids)
    assert "🚀漢" in answer.text


# Facts around the answer ----------------------------------------------------------------------------------------------


def test_an_output_says_what_was_asked(engine: Engine) -> None:
    key = engine.add(engine.parse(PROMPT, greedy()), greedy(), request_id="mine")
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert {of for of, _ in outputs} == {key}
    last = outputs[-1][1]
    assert (last.request_id, last.prompt) == ("mine", PROMPT)
    assert last.prompt_token_ids == tokenizer_of(engine).encode(PROMPT)
    by_ids = generate(engine, [last.prompt_token_ids], greedy())[0]
    assert by_ids.prompt is None
    assert answers([by_ids]) == answers([last])


def test_metrics_are_in_order_and_count_preemptions(tiny_checkpoints: Any) -> None:
    engine = make_engine(tiny_checkpoints("Llama")[0], max_model_len=48, num_blocks_override=14)
    outputs = generate(engine, random_prompts((27, 22)), greedy(max_tokens=15))
    for output in outputs:
        metrics = output.metrics
        assert metrics is not None
        assert metrics.first_token_time is not None
        assert metrics.finished_time is not None
        assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time
    counts = [output.metrics.num_preemptions for output in outputs if output.metrics]
    assert sum(counts) == engine.core.scheduler.stats.num_preemptions > 0


def test_cached_tokens_are_counted_per_request(tiny_checkpoints: Any) -> None:
    engine = make_engine(tiny_checkpoints("Llama")[0])
    prompt = random_prompts([18])[0]
    counts = [generate(engine, [prompt], greedy(max_tokens=2))[0].num_cached_tokens for _ in range(2)]
    assert counts == [0, 16]
    (other,) = generate(engine, [prompt[:9] + [1] * 9], greedy(max_tokens=2))
    assert other.num_cached_tokens == 8
    # All answers of one prompt share what the first one computes.
    assert engine.reset_prefix_cache()
    (several,) = generate(engine, [prompt], greedy(n=3, max_tokens=2))
    assert several.num_cached_tokens == 0


def test_the_defaults_of_a_wrong_generation_config_are_an_error_that_names_the_file(
    tiny_checkpoints: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoints("Llama")[0], folder)
    (folder / "generation_config.json").write_text(json.dumps({"top_p": 7}))
    with pytest.raises(LoadError, match=r"generation_config.json.*top_p must be in .* got 7"):
        make_engine(folder)
    engine = make_engine(folder, generation_config="vllm")
    assert engine.default_params == SamplingParams()
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 5, "top_k": None, "min_p": 0.0}))
    assert make_engine(folder).default_params == SamplingParams(max_tokens=5)
