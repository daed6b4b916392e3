"""Random parameters, stops, priorities, seeds, penalties, aborts and pools: every request answers as it does alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from motet.core.outputs import CompletionOutput
from motet.core.params import SamplingParams
from motet.engine.engine import Engine
from tests.engine.driver import assert_idle, generate, make_engine, random_prompts

NUM_REQUESTS = 16
MAX_LEN = 48


@dataclass(frozen=True)
class Job:
    prompt: dict[str, Any]
    params: SamplingParams
    priority: int


def make_jobs(chance: random.Random) -> list[Job]:
    starts = random_prompts([4, 9, 16, 21], seed=chance.randrange(100))
    jobs = []
    for index in range(NUM_REQUESTS):
        ids = [*chance.choice(starts), *random_prompts([chance.randrange(12)], seed=index)[0]]
        params = SamplingParams(
            temperature=chance.choice([0.0, 1.0]),
            seed=index,
            n=chance.choice([1, 1, 1, 2]),
            max_tokens=chance.randint(1, 16),
            ignore_eos=chance.random() < 0.5,
            logprobs=chance.choice([None, None, 2]),
            prompt_logprobs=chance.choice([None, None, None, 1]),
            stop=chance.choice([None, ["e", "th"], [" "]]),
            repetition_penalty=chance.choice([1.0, 1.2]),
        )
        salt = chance.choice([None, None, "a", "b"])
        jobs.append(Job({"prompt_token_ids": ids, "cache_salt": salt}, params, chance.randint(0, 2)))
    return jobs


def told(answer: CompletionOutput) -> tuple[Any, ...]:
    """All of an answer that is exact. (The last digits of logprobs change with the size of a product.)"""
    chosen = None if answer.logprobs is None else [next(iter(entry)) for entry in answer.logprobs]
    return answer.index, answer.text, answer.token_ids, chosen, answer.finish_reason, answer.stop_reason


def crowd(engine: Engine, jobs: list[Job], chance: random.Random) -> dict[int, Any]:
    """Jobs that came to their end, by index."""
    running: dict[str, int] = {}
    done = {}
    todo = list(range(len(jobs)))
    while todo or engine.has_work:
        if todo and chance.random() < 0.6:
            job = jobs[todo[0]]
            key = engine.add(engine.parse(job.prompt, job.params), job.params, priority=job.priority)
            running[key] = todo.pop(0)
        if running and chance.random() < 0.06:
            key = chance.choice(sorted(running))
            engine.abort([key])
            del running[key]
        for key, output in engine.step():
            if output.finished and key in running:
                done[running.pop(key)] = output
        engine.check()
    assert_idle(engine)
    assert not running
    return done


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_a_crowd_is_answered_as_if_alone(tiny_checkpoints: Any, family: str, seed: int) -> None:
    folder: Path = tiny_checkpoints(family)[0]
    chance = random.Random(seed)
    jobs = make_jobs(chance)
    quiet = make_engine(folder, skip_tokenizer_init=False, max_model_len=MAX_LEN, enable_prefix_caching=False)
    expected = [generate(quiet, [job.prompt], job.params)[0] for job in jobs]
    engine = make_engine(
        folder,
        skip_tokenizer_init=False,
        max_model_len=MAX_LEN,
        num_blocks_override=chance.choice([14, 22]),
        max_num_seqs=chance.choice([3, 8]),
        max_num_batched_tokens=chance.choice([5, 16, 64]),
        scheduling_policy=chance.choice(["fcfs", "priority"]),
        async_scheduling=chance.random() < 0.7,
    )
    done = crowd(engine, jobs, chance)
    assert done
    for index, output in done.items():
        assert [told(part) for part in output.outputs] == [told(part) for part in expected[index].outputs], index
        assert (output.prompt_logprobs is None) == (expected[index].prompt_logprobs is None)
        assert None not in (output.prompt_logprobs or [None])[1:]
