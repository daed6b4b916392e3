"""Logprobs and prompt logprobs are log-softmax of what transformers computes, however the work is cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from motet.core.outputs import LogprobDict, RequestOutput
from motet.core.params import SamplingParams
from motet.runner.heads.autoregressive import LOGPROB_ROWS
from tests.engine.driver import answers, generate, greedy, make_engine, only, random_prompts

TOLERANCE = 1e-4
LENGTHS = (1, 2, 23, 40)
NUM_TOP = 3


@pytest.fixture(scope="module", params=["Llama", "Gemma3"])
def model(request: pytest.FixtureRequest, tiny_checkpoints: Any) -> Any:
    return tiny_checkpoints(request.param)


def oracle(model: Any, token_ids: list[int]) -> Tensor:
    """[T, V] log-probabilities of the token after each."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].float().log_softmax(-1)


def check_entry(entry: LogprobDict, token_id: int, expected: Tensor, num_top: int = NUM_TOP) -> None:
    """The token itself first, then the likeliest in order; values within 1e-4, ranks right."""
    assert next(iter(entry)) == token_id
    best = expected.topk(num_top)
    assert set(entry) == {token_id, *best.indices.tolist()}
    for found_id, logprob in entry.items():
        assert logprob.logprob == pytest.approx(float(expected[found_id]), abs=TOLERANCE)
        # A rank is right when it would be for values that differ by no more than the tolerance.
        low = int((expected > expected[found_id] + TOLERANCE).sum()) + 1
        high = int((expected >= expected[found_id] - TOLERANCE).sum())
        assert logprob.rank is not None
        assert low <= logprob.rank <= high
    listed = [entry[i].logprob for i in entry if i != token_id or i == int(best.indices[0])]
    assert listed == sorted(listed, reverse=True)


def check(model: Any, output: RequestOutput) -> None:
    answer = only(output)
    prompt_len = len(output.prompt_token_ids)
    expected = oracle(model, output.prompt_token_ids + answer.token_ids)
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    for index, (token_id, entry) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
        check_entry(entry, token_id, expected[prompt_len - 1 + index])
    chosen = [entry[token_id].logprob for token_id, entry in zip(answer.token_ids, answer.logprobs, strict=True)]
    assert answer.cumulative_logprob == pytest.approx(sum(chosen), abs=1e-6)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == prompt_len
    assert output.prompt_logprobs[0] is None
    for index in range(1, prompt_len):
        entry = output.prompt_logprobs[index]
        assert entry is not None
        check_entry(entry, output.prompt_token_ids[index], expected[index - 1])


PARAMS = greedy(logprobs=NUM_TOP, prompt_logprobs=NUM_TOP, max_tokens=6)


@pytest.mark.parametrize("budget", [1, 3, 7, 128])
def test_any_chunks(model: Any, budget: int) -> None:
    folder, reference = model
    for output in generate(make_engine(folder, max_num_batched_tokens=budget), random_prompts(LENGTHS), PARAMS):
        check(reference, output)


@pytest.mark.parametrize("is_async", [True, False])
def test_preempted(model: Any, is_async: bool) -> None:
    """A prompt that is computed again brings the same entries again: each is told once."""
    folder, reference = model
    engine = make_engine(
        folder, max_model_len=48, num_blocks_override=18, max_num_batched_tokens=24, async_scheduling=is_async
    )
    outputs = generate(engine, random_prompts((30, 26, 33, 20)), PARAMS.clone(max_tokens=14))
    assert engine.core.scheduler.stats.num_preemptions > 0
    for output in outputs:
        check(reference, output)


def test_sampled_rows_report_the_raw_distribution(model: Any) -> None:
    folder, reference = model
    params = SamplingParams(
        temperature=0.5, seed=4, top_p=0.8, repetition_penalty=1.2, presence_penalty=0.3, logit_bias={9: 3.0}
    ).clone(logprobs=NUM_TOP, prompt_logprobs=NUM_TOP, max_tokens=6, ignore_eos=True)
    for output in generate(make_engine(folder), random_prompts(LENGTHS), params):
        check(reference, output)


def test_a_warm_cache_is_not_read_for_prompt_logprobs_but_is_for_others(model: Any) -> None:
    folder, reference = model
    engine = make_engine(folder)
    prompts = random_prompts((40, 40))
    generate(engine, prompts, greedy(max_tokens=6))
    mixed = generate(engine, prompts, [PARAMS, greedy(logprobs=NUM_TOP, max_tokens=6)])
    assert [output.num_cached_tokens for output in mixed] == [0, 36]
    check(reference, mixed[0])
    expected = oracle(reference, mixed[1].prompt_token_ids + only(mixed[1]).token_ids)
    for index, entry in enumerate(only(mixed[1]).logprobs or ()):
        check_entry(entry, only(mixed[1]).token_ids[index], expected[39 + index])
    # And what such a request computes is there for others.
    fresh = make_engine(folder)
    generate(fresh, prompts[:1], PARAMS)
    assert generate(fresh, prompts[:1], greedy())[0].num_cached_tokens == 36


@pytest.mark.parametrize("budget", [256, 100])
def test_a_prompt_of_several_row_blocks(model: Any, budget: int) -> None:
    folder, reference = model
    length = LOGPROB_ROWS + 33
    engine = make_engine(folder, max_model_len=256, max_num_batched_tokens=budget)
    (output,) = generate(engine, random_prompts([length]), PARAMS)
    check(reference, output)


@pytest.mark.parametrize(("logprobs", "size"), [(0, 1), (1, 1), (-1, 512)])
def test_how_many_are_told(tiny_checkpoints: Any, logprobs: int, size: int) -> None:
    folder, reference = tiny_checkpoints("Llama")
    engine = make_engine(folder, max_logprobs=-1)
    (output,) = generate(engine, [[5, 6, 7]], greedy(logprobs=logprobs, prompt_logprobs=logprobs, max_tokens=3))
    expected = oracle(reference, [5, 6, 7, *only(output).token_ids])
    for index, entry in enumerate(only(output).logprobs or ()):
        assert len(entry) == size  # greedy: the chosen token is the likeliest
        check_entry(entry, only(output).token_ids[index], expected[2 + index], num_top=max(size, 1))
    for entry in (output.prompt_logprobs or ())[1:]:
        assert size <= len(entry or ()) <= min(size + 1, 512)


def test_what_was_not_asked_for_is_none(tiny_checkpoints: Any) -> None:
    (output,) = generate(make_engine(tiny_checkpoints("Llama")[0]), [[5, 6]], greedy())
    assert (output.prompt_logprobs, only(output).logprobs, only(output).cumulative_logprob) == (None, None, None)


def test_tokens_are_named_by_their_own_text(tiny_checkpoints: Any) -> None:
    engine = make_engine(tiny_checkpoints("Llama")[0], skip_tokenizer_init=False)
    (output,) = generate(engine, ["the quick brown fox"], greedy(logprobs=2, prompt_logprobs=0, max_tokens=2))
    shown = [entry[i].decoded_token for i, entry in zip(output.prompt_token_ids, output.prompt_logprobs or ()) if entry]
    assert "".join(str(text) for text in shown) == " quick brown fox"  # the first token has no entry
    for entry in only(output).logprobs or ():
        for token_id, logprob in entry.items():
            assert logprob.decoded_token == engine.facts.tokenizer.token_text(token_id)  # type: ignore[union-attr]


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_a_seeded_draw_does_not_depend_on_how_the_prompt_is_cut(tiny_checkpoints: Any, family: str) -> None:
    """The noise advances with emitted tokens only: chunks that emit nothing draw nothing."""
    folder, _ = tiny_checkpoints(family)
    prompts = random_prompts((50, 35))
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=10, ignore_eos=True)
    found = [
        answers(generate(make_engine(folder, max_num_batched_tokens=budget), prompts, params))
        for budget in (128, 1, 7, 16)
    ]
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0][0] != found[0][1]
