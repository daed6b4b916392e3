"""Preemption, priorities, aborts, salts and limits, seen from the engine: the tokens stay the same."""

from __future__ import annotations

from typing import Any

import pytest

from motet.core.errors import CapacityError
from motet.core.params import SamplingParams
from motet.engine.engine import Engine
from tests.engine.driver import (
    alone,
    answers,
    assert_idle,
    generate,
    greedy,
    make_engine,
    only,
    random_prompts,
    run,
)

FAMILIES = ["Llama", "Gemma3"]
LONG = random_prompts((30, 26, 33, 28, 31, 20, 29, 32))
SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, seed=3, max_tokens=15, ignore_eos=True)


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tiny_checkpoints: Any) -> Any:
    return tiny_checkpoints(request.param)[0]


@pytest.mark.parametrize("budget", [9, 64])
def test_repeated_preemptions(folder: Any, budget: int) -> None:
    """Eight long requests in a pool for one and a half, with steps in flight when blocks run out."""
    params = [SAMPLED.clone(seed=i) if i % 2 else greedy(max_tokens=15) for i in range(len(LONG))]
    expected = alone(make_engine(folder), LONG, params)
    engine = make_engine(
        folder, max_model_len=48, num_blocks_override=18, max_num_batched_tokens=budget, enable_prefix_caching=False
    )
    outputs = generate(engine, LONG, params)
    assert answers(outputs) == expected
    assert engine.core.scheduler.stats.num_preemptions >= 2
    assert max(output.metrics.num_preemptions for output in outputs if output.metrics) >= 1


@pytest.mark.parametrize("is_async", [True, False])
def test_urgent_requests_push_others_out_and_nobody_loses_a_token(folder: Any, is_async: bool) -> None:
    params = [SAMPLED.clone(seed=i) if i % 2 else greedy(max_tokens=15) for i in range(len(LONG))]
    expected = alone(make_engine(folder), LONG, params)
    engine = make_engine(
        folder,
        max_model_len=48,
        num_blocks_override=18,
        scheduling_policy="priority",
        max_num_batched_tokens=16,
        async_scheduling=is_async,
    )
    keys, done = [], {}
    order: list[str] = []
    # Ever more urgent ones arrive while the others run.
    for index, (prompt, one) in enumerate(zip(LONG, params, strict=True)):
        keys.append(engine.add(engine.parse(prompt, one), one, priority=-index))
        for _ in range(4):
            for key, output in engine.step():
                done[key] = output
                order += [key] if output.finished else []
            engine.check()
    while engine.has_work:
        for key, output in engine.step():
            done[key] = output
            order += [key] if output.finished else []
        engine.check()
    assert_idle(engine)
    assert [only(done[key]).token_ids for key in keys] == expected
    assert engine.core.scheduler.stats.num_preemptions > 0
    assert order.index(keys[-1]) < order.index(keys[0]), "the most urgent one came last and ends first"


def test_with_first_come_first_served_priorities_mean_nothing(tiny_checkpoints: Any) -> None:
    engine = make_engine(tiny_checkpoints("Llama")[0], max_num_seqs=1)
    keys = [engine.add(engine.parse([5], greedy()), greedy(), priority=-i) for i in range(3)]
    order = []
    while engine.has_work:
        order += [key for key, output in engine.step() if output.finished]
    assert order == keys


@pytest.mark.parametrize("is_async", [True, False])
def test_abort_at_every_step_of_a_life(folder: Any, is_async: bool) -> None:
    """Queued, in mid-prompt, before the first token, between tokens, with a step in flight, preempted."""
    prompts = [LONG[0], LONG[1], LONG[5]]
    params = [greedy(max_tokens=8), SAMPLED.clone(max_tokens=8), greedy(max_tokens=8)]
    expected = alone(make_engine(folder), prompts, params)
    engine = make_engine(
        folder, max_model_len=48, num_blocks_override=18, max_num_batched_tokens=16, async_scheduling=is_async
    )
    states = set()
    for k in range(60):
        keys = [engine.add(engine.parse(p, one), one) for p, one in zip(prompts, params, strict=True)]
        victim = k % 3
        done = {}
        for _ in range(k // 2):
            done.update(engine.step())
        request = engine.core.scheduler._requests.get(f"{keys[victim]}#0")
        last = engine.abort([keys[victim]])
        assert engine.abort([keys[victim]]) == []
        if request is not None:
            states.add((request.num_preemptions > 0, bool(request.output_token_ids), request.num_computed > 0))
            ((key, output),) = last
            assert (key, output.finished, only(output).finish_reason) == (keys[victim], True, "abort")
            assert only(output).token_ids == expected[victim][: len(only(output).token_ids)]
        engine.check()
        done.update(run(engine))
        for index, key in enumerate(keys):
            if index != victim:
                assert only(done[key]).token_ids == expected[index]
        if request is None:  # it had ended before
            assert only(done[keys[victim]]).token_ids == expected[victim]
            if k > 30:
                break
    assert len(states) >= 4


def test_abort_of_one_of_several_answers_ends_all(tiny_checkpoints: Any) -> None:
    engine = make_engine(tiny_checkpoints("Llama")[0])
    key = engine.add(engine.parse([5, 6], greedy(n=3)), greedy(n=3))
    for _ in range(3):
        engine.step()
    ((_, output),) = engine.abort([key, "no such key"])
    assert [part.finish_reason for part in output.outputs] == ["abort"] * 3
    run(engine)


def test_requests_with_different_salts_share_nothing(tiny_checkpoints: Any) -> None:
    engine = make_engine(tiny_checkpoints("Llama")[0])
    ids = random_prompts([20])[0]

    def cached(salt: str | None) -> int | None:
        (output,) = generate(engine, [{"prompt_token_ids": ids, "cache_salt": salt}], greedy(max_tokens=1))
        return output.num_cached_tokens

    assert [cached(salt) for salt in (None, "a", "b", "a", "b", None, "ä")] == [0, 0, 0, 16, 16, 16, 0]


def test_the_prefix_cache_can_be_emptied_only_when_idle(tiny_checkpoints: Any) -> None:
    engine = make_engine(tiny_checkpoints("Llama")[0])
    ids = random_prompts([20])[0]
    generate(engine, [ids], greedy())
    engine.add(engine.parse(ids, greedy()), greedy())
    engine.step()
    assert not engine.reset_prefix_cache()
    run(engine)
    assert engine.reset_prefix_cache()
    assert generate(engine, [ids], greedy())[0].num_cached_tokens == 0


def test_without_prefix_caching_nothing_is_found(tiny_checkpoints: Any) -> None:
    engine = make_engine(tiny_checkpoints("Llama")[0], enable_prefix_caching=False)
    ids = random_prompts([20])[0]
    outputs = [generate(engine, [ids], greedy())[0] for _ in range(2)]
    assert [output.num_cached_tokens for output in outputs] == [0, 0]
    assert answers(outputs[:1]) == answers(outputs[1:])


def test_one_token_per_step(folder: Any) -> None:
    prompts = random_prompts((3, 18, 1))
    expected = alone(make_engine(folder), prompts, greedy())
    engine = make_engine(folder, max_num_batched_tokens=1, max_num_seqs=2)
    assert answers(generate(engine, prompts, greedy())) == expected


def test_one_row_and_blocks_of_one_token(folder: Any) -> None:
    prompts = random_prompts((3, 18, 1))
    expected = alone(make_engine(folder), prompts, greedy())
    engine = make_engine(folder, max_num_seqs=1, block_size=1)
    assert answers(generate(engine, prompts, greedy())) == expected


# Limits ---------------------------------------------------------------------------------------------------------------


def longest_that_fits(message: str) -> int:
    return int(message.partition("lower max_model_len to at most ")[2].partition(",")[0])


@pytest.mark.parametrize("options", [{"num_blocks_override": 12}, {"kv_cache_memory_bytes": 20_000}], ids=str)
def test_a_pool_too_small_for_one_request_is_refused_with_what_would_fit(folder: Any, options: dict[str, Any]) -> None:
    with pytest.raises(CapacityError, match=r"one request of max_model_len=128.*raise kv_cache_memory_bytes") as caught:
        make_engine(folder, max_num_batched_tokens=4, **options)
    longest = longest_that_fits(str(caught.value))
    engine = make_engine(folder, max_num_batched_tokens=4, max_model_len=longest, **options)
    (output,) = generate(engine, [[5] * (longest - 3)], greedy(max_tokens=None))
    assert len(only(output).token_ids) == 3
    with pytest.raises(CapacityError):
        make_engine(folder, max_num_batched_tokens=4, max_model_len=longest + 4, **options)


def test_a_pool_of_exactly_one_request_serves_many(folder: Any) -> None:
    engine = make_engine(folder, max_model_len=32, num_blocks_override=9)
    prompts = random_prompts((20, 25, 31, 8))
    params = greedy(max_tokens=None)
    assert answers(generate(engine, prompts, params)) == alone(make_engine(folder, max_model_len=32), prompts, params)


def test_no_memory_at_all(tiny_checkpoints: Any) -> None:
    with pytest.raises(CapacityError, match="raise kv_cache_memory_bytes"):
        make_engine(tiny_checkpoints("Llama")[0], kv_cache_memory_bytes=1)


def test_what_a_failed_request_computed_is_not_found_again(tiny_checkpoints: Any) -> None:
    engine: Engine = make_engine(tiny_checkpoints("Llama")[0], skip_tokenizer_init=False)
    tokenizer = engine.facts.tokenizer
    assert tokenizer is not None
    (letter,) = tokenizer.encode("z", add_special_tokens=False)
    prompt = random_prompts([20])[0]
    params = SamplingParams(allowed_token_ids=[letter], bad_words=["zz"])
    (output,) = generate(engine, [prompt], params)
    assert only(output).finish_reason == "error"
    assert generate(engine, [prompt], greedy())[0].num_cached_tokens == 0
