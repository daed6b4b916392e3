"""Seeded random storms under memory pressure: broader than what hypothesis draws, with the same strict oracle."""

from __future__ import annotations

import random

import pytest

from motet.core.params import RowSampling
from tests.sched.fake_runner import VOCAB_SIZE, Engine, check_all, full_group, least_blocks, window_group

SEEDS_PER_TEST = 80


def storm_engine(draw: random.Random, *, policy: str, overlap: bool) -> Engine:
    windows = draw.choice([[None], [None], [None, 6], [None, 2, 9], [12], [3, 8], [1]])
    groups = tuple(full_group() if window is None else window_group(window) for window in windows)
    block_size, max_model_len = draw.choice([1, 2, 3, 4]), draw.randint(10, 40)
    max_tokens = draw.choice([1, 3, 5, 8, 16, 64])
    return Engine(
        groups,
        block_size=block_size,
        num_blocks=tuple(
            least_blocks(group, block_size, max_model_len, max_tokens) + draw.choice([0, 1, 3, 8]) for group in groups
        ),
        max_model_len=max_model_len,
        max_num_seqs=draw.choice([1, 3, 5, 8]),
        max_tokens=max_tokens,
        policy=policy,
        caching=draw.random() < 0.7,
        overlap=overlap,
    )


def add_random(engine: Engine, draw: random.Random) -> None:
    length = draw.randint(1, draw.choice([4, 8, engine.max_model_len - 1]))
    prompt = [i * i % VOCAB_SIZE for i in range(length)]
    if draw.random() < 0.5:
        prompt[draw.randrange(length)] = draw.randrange(VOCAB_SIZE)
    wants_logprobs = draw.random() < 0.2
    engine.add(
        prompt,
        draw.choice([1, 8, engine.max_model_len]),
        eos_token_ids=frozenset(draw.sample(range(VOCAB_SIZE), draw.choice([0] * 9 + [1]))),
        stop_token_ids=frozenset(draw.sample(range(VOCAB_SIZE), draw.choice([0] * 9 + [1]))),
        priority=draw.randint(-1, 1),
        arrival=float(draw.randint(0, 3)),
        cache_salt=draw.choice([None, None, "a"]),
        sampling=RowSampling(num_prompt_logprobs=0 if wants_logprobs else None),
        skip_prefix_cache_read=wants_logprobs,
        fails_at=draw.randint(0, 9) if draw.random() < 0.1 else None,
    )


def disturb(engine: Engine, draw: random.Random) -> None:
    unfinished = [request for request in engine.requests.values() if not request.is_finished]
    if draw.random() < 0.05:
        engine.commit()
    if unfinished and draw.random() < 0.03:
        engine.abort(draw.choice(unfinished))
    answering = [request for request in unfinished if request.output_token_ids and not request.is_finished]
    if answering and draw.random() < 0.03:
        engine.stop(draw.choice(answering))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_everyone_gets_what_it_gets_alone(policy: str, overlap: bool) -> None:
    num_preemptions = num_hits = 0
    for seed in range(SEEDS_PER_TEST):
        draw = random.Random(seed)
        engine = storm_engine(draw, policy=policy, overlap=overlap)
        density = draw.choice([0.2, 0.6])
        for _ in range(draw.choice([20, 60])):
            if draw.random() < density:
                add_random(engine, draw)
            engine.step()
            disturb(engine, draw)
        check_all(engine)
        num_preemptions += engine.scheduler.stats.num_preemptions
        num_hits += engine.scheduler.stats.num_prefix_hit_tokens
    assert num_preemptions > 100, "the storms are too mild to say anything"
    assert num_hits > 1000, "the storms share too few prefixes to say anything"
