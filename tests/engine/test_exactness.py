"""A request's tokens are the same alone or in a crowd, whole or chunked, cold or cached, preempted or not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from motet.core.params import SamplingParams
from tests.checkpoints import CONFIGS
from tests.engine.driver import (
    alone,
    answers,
    assert_idle,
    generate,
    greedy,
    make_engine,
    oracle_greedy,
    random_prompts,
    run,
)

NUM_ARRIVALS = 14
LENGTHS = (1, 3, 9, 21, 45, 14)
MIXED = [
    SamplingParams(temperature=1.0, seed=7, max_tokens=10, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.9, seed=8, max_tokens=14, ignore_eos=True, repetition_penalty=1.3),
    SamplingParams(temperature=1.5, top_k=20, seed=9, max_tokens=6, ignore_eos=True, presence_penalty=0.5),
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, frequency_penalty=0.4),
    SamplingParams(temperature=0.9, min_p=0.05, seed=10, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True),
]


@pytest.fixture(params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest, tiny_checkpoints: Any) -> tuple[Path, Any]:
    return tiny_checkpoints(request.param)


def test_batched_greedy_equals_transformers(model: tuple[Path, Any]) -> None:
    """Prompts shorter and longer than the window, with answers that cross it."""
    folder, oracle = model
    prompts = random_prompts(LENGTHS)
    outputs = generate(make_engine(folder), prompts, greedy(max_tokens=16))
    assert answers(outputs) == [oracle_greedy(oracle, prompt, 16) for prompt in prompts]


@pytest.mark.parametrize("budget", [1, 3, 7, 64])
def test_chunked_equals_alone(model: tuple[Path, Any], budget: int) -> None:
    prompts = random_prompts(LENGTHS)
    expected = alone(make_engine(model[0]), prompts, MIXED)
    engine = make_engine(model[0], max_num_batched_tokens=budget, async_scheduling=budget != 3)
    assert answers(generate(engine, prompts, MIXED)) == expected


def test_warm_cache_equals_cold(model: tuple[Path, Any]) -> None:
    engine = make_engine(model[0])
    prompts = random_prompts(LENGTHS)
    cold = generate(engine, prompts, greedy())
    warm = generate(engine, prompts, greedy())
    assert answers(warm) == answers(cold)
    assert [output.num_cached_tokens for output in warm] == [(length - 1) // 4 * 4 for length in LENGTHS]
    # What was generated is in the cache as well.
    follow_up = [prompt + answer for prompt, answer in zip(prompts, answers(cold), strict=True)]
    hits = generate(engine, follow_up, greedy())
    assert all(h.num_cached_tokens >= (len(p) - 1) // 4 * 4 - 4 for h, p in zip(hits, follow_up, strict=True))
    assert answers(hits) == alone(make_engine(model[0], enable_prefix_caching=False), follow_up, greedy())


@pytest.mark.parametrize("is_async", [True, False])
def test_preempted_equals_alone(model: tuple[Path, Any], is_async: bool) -> None:
    """A pool of about one and a half requests."""
    prompts = random_prompts((30, 26, 33, 28, 31, 20))
    params = [one.clone(max_tokens=15) for one in MIXED]
    expected = alone(make_engine(model[0]), prompts, params)
    engine = make_engine(model[0], max_model_len=48, num_blocks_override=18, async_scheduling=is_async)
    assert answers(generate(engine, prompts, params)) == expected
    assert engine.core.scheduler.stats.num_preemptions > 0


@pytest.mark.parametrize("seed", range(2))
def test_random_arrivals_finishes_and_aborts(model: tuple[Path, Any], seed: int) -> None:
    chance = random.Random(seed)
    prompts = random_prompts([chance.randint(1, 40) for _ in range(NUM_ARRIVALS)], seed=seed)
    params = [chance.choice(MIXED).clone(seed=i, max_tokens=chance.randint(1, 20)) for i in range(NUM_ARRIVALS)]
    expected = alone(make_engine(model[0]), prompts, params)
    engine = make_engine(
        model[0],
        max_model_len=64,
        num_blocks_override=40,
        max_num_seqs=5,
        max_num_batched_tokens=chance.choice([8, 24]),
        scheduling_policy=chance.choice(["fcfs", "priority"]),
    )
    keys: dict[str, int] = {}
    done: dict[int, list[int]] = {}
    todo = list(range(NUM_ARRIVALS))
    aborted: set[int] = set()
    while todo or engine.has_work:
        if todo and chance.random() < 0.5:
            i = todo.pop(0)
            keys[engine.add(engine.parse(prompts[i], params[i]), params[i], priority=chance.randint(0, 3))] = i
        if keys and chance.random() < 0.1:
            key = chance.choice(sorted(keys))
            if engine.abort([key]):
                aborted.add(keys[key])
        for key, output in engine.step():
            if output.finished:
                done[keys[key]] = output.outputs[0].token_ids
        engine.check()
    assert_idle(engine)
    assert sorted({*done, *aborted}) == list(range(NUM_ARRIVALS))
    assert done == {i: expected[i] for i in done}


def test_a_plain_request_after_everything(model: tuple[Path, Any]) -> None:
    engine = make_engine(model[0])
    keys = [engine.add(engine.parse(prompt, greedy()), greedy()) for prompt in random_prompts(LENGTHS)]
    for _ in range(4):
        engine.step()
    assert len(engine.abort(keys)) == len(keys)
    run(engine)
    prompt = random_prompts([10])
    assert answers(generate(engine, prompt, greedy())) == alone(make_engine(model[0]), prompt, greedy())
