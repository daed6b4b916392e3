"""AsyncLLM: the same answers for any number of coroutines, and nothing left of those that went away."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from motet.core.errors import EngineDeadError, InputError
from motet.core.outputs import RequestOutput
from motet.core.params import RequestOutputKind, SamplingParams
from motet.engine.async_llm import AsyncLLM
from tests.engine.driver import alone, answers, assert_idle, generate, greedy, make_engine, only, random_prompts

T = TypeVar("T")
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "threads": 1,
    "block_size": 4,
    "max_model_len": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "kv_cache_memory_bytes": 1 << 22,
    "enable_prefix_caching": False,
}
LONG = greedy(max_tokens=None, output_kind=RequestOutputKind.DELTA)


def make(folder: Any, **options: Any) -> AsyncLLM:
    return AsyncLLM.from_options(model=str(folder), **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def shared(tiny_checkpoints: Any) -> Iterator[AsyncLLM]:
    llm = make(tiny_checkpoints("Llama")[0])
    yield llm
    llm.shutdown()


@pytest.fixture
def llm(shared: AsyncLLM) -> Iterator[AsyncLLM]:
    """After each test nothing is left, and a plain request is answered."""
    yield shared
    output = go(lambda: last(shared, [5, 6], greedy(max_tokens=2)))
    assert len(only(output).token_ids) == 2
    wait_until_idle(shared)


def go(main: Callable[[], Awaitable[T]]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(main(), timeout=30)

    return asyncio.run(limited())


def wait_until_idle(llm: AsyncLLM) -> None:
    """Commands run in order on the engine's thread: a look at it comes after all that were given before."""
    answers: queue.Queue[bool] = queue.Queue()
    for _ in range(500):
        llm._commands.put(lambda: answers.put(llm.engine.has_work))
        if not answers.get(timeout=20):
            break
        time.sleep(0.02)
    assert_idle(llm.engine)
    assert llm._streams == {}


async def last(llm: AsyncLLM, prompt: Any, params: SamplingParams, request_id: str = "r", **more: Any) -> RequestOutput:
    outputs = [output async for output in llm.generate(prompt, params, request_id, **more)]
    assert outputs[-1].finished
    return outputs[-1]


async def first(llm: AsyncLLM, prompt: Any, params: SamplingParams, request_id: str = "r") -> RequestOutput:
    """Leaves the loop after one output."""
    async for output in llm.generate(prompt, params, request_id):
        return output
    raise AssertionError("no output")


def test_many_at_once_are_answered_as_one_by_one(llm: AsyncLLM, tiny_checkpoints: Any) -> None:
    lengths = [1, 9, 30, 4, 17, 60, 2, 25] * 3
    prompts = random_prompts(lengths)
    params = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=3 + i % 7, ignore_eos=True, n=1 + (i % 5 == 0))
        for i in range(len(lengths))
    ]
    engine = make_engine(tiny_checkpoints("Llama")[0])
    expected = [[part.token_ids for part in output.outputs] for output in generate(engine, prompts, params)]

    async def main() -> list[RequestOutput]:
        tasks = [last(llm, prompt, one, f"r{i}") for i, (prompt, one) in enumerate(zip(prompts, params, strict=True))]
        return await asyncio.gather(*tasks)

    outputs = go(main)
    assert [[part.token_ids for part in output.outputs] for output in outputs] == expected
    assert [output.request_id for output in outputs] == [f"r{i}" for i in range(len(lengths))]


def test_outputs_come_one_by_one(llm: AsyncLLM) -> None:
    async def main() -> list[list[int]]:
        params = greedy(max_tokens=5, output_kind=RequestOutputKind.DELTA)
        return [only(output).token_ids async for output in llm.generate([5, 6, 7], params, "r")]

    deltas = go(main)
    assert [len(ids) for ids in deltas] == [1] * 5


@pytest.fixture
def slow(llm: AsyncLLM) -> Iterator[Callable[[], int]]:
    """Makes the engine slow, so that nothing ends by itself; gives a function that counts the steps since then."""
    runner: Any = llm.engine.core.runner
    run = runner.executor.run
    yield slow_down(llm)
    runner.executor.run = run


def slow_down(llm: AsyncLLM) -> Callable[[], int]:
    runner: Any = llm.engine.core.runner
    run, batches = runner.executor.run, []

    def sleepy(batch: Any) -> Any:
        batches.append(batch)
        time.sleep(0.01)
        return run(batch)

    runner.executor.run = sleepy
    return lambda: len(batches)


NUM_STEPS_TO_THE_END = 120


def test_leaving_the_loop_early_aborts(llm: AsyncLLM, slow: Callable[[], int]) -> None:
    async def main() -> None:
        outputs = await asyncio.gather(*(first(llm, prompt, LONG) for prompt in random_prompts((3, 9, 40))))
        assert [len(only(output).token_ids) for output in outputs] == [1, 1, 1]
        await asyncio.sleep(0)  # lets the loop finalise what was left

    go(main)
    wait_until_idle(llm)
    assert slow() < NUM_STEPS_TO_THE_END


def test_cancelling_a_task_aborts_and_others_go_on(
    llm: AsyncLLM, slow: Callable[[], int], tiny_checkpoints: Any
) -> None:
    prompts = random_prompts((7, 12))
    expected = alone(make_engine(tiny_checkpoints("Llama")[0]), prompts, greedy(max_tokens=40))

    async def main() -> list[RequestOutput]:
        doomed = [asyncio.create_task(last(llm, [i + 1] * 20, LONG)) for i in range(12)]  # some of them only queued
        others = [asyncio.create_task(last(llm, prompt, greedy(max_tokens=40))) for prompt in prompts]
        await asyncio.sleep(0.02)
        for task in doomed:
            task.cancel()
        results = await asyncio.gather(*doomed, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        return await asyncio.gather(*others)

    assert answers(go(main)) == expected
    wait_until_idle(llm)
    assert slow() < NUM_STEPS_TO_THE_END


def test_abort_delivers_a_last_output(llm: AsyncLLM, slow: Callable[[], int]) -> None:
    async def main() -> RequestOutput:
        output = None
        async for output in llm.generate([5, 6], LONG.clone(output_kind=RequestOutputKind.CUMULATIVE), "mine"):
            if len(only(output).token_ids) == 3:
                await llm.abort("mine")
        assert output is not None
        return output

    output = go(main)
    assert output.finished
    assert only(output).finish_reason == "abort"
    assert 3 <= len(only(output).token_ids) < 126


def test_abort_of_a_queued_request_and_of_an_unknown_one(llm: AsyncLLM, slow: Callable[[], int]) -> None:
    async def main() -> list[RequestOutput]:
        tasks = [asyncio.create_task(last(llm, [i + 1], LONG, f"r{i}")) for i in range(9)]  # one more than rows
        await asyncio.sleep(0.01)
        await llm.abort("no such request")
        for i in range(9):
            await llm.abort(f"r{i}")
        return await asyncio.gather(*tasks)

    outputs = go(main)
    assert {only(output).finish_reason for output in outputs} == {"abort"}
    assert slow() < NUM_STEPS_TO_THE_END


def test_the_same_request_id_twice_at_the_same_time(llm: AsyncLLM, tiny_checkpoints: Any) -> None:
    prompts = random_prompts((7, 12))
    expected = alone(make_engine(tiny_checkpoints("Llama")[0]), prompts, greedy())

    async def main() -> list[RequestOutput]:
        return await asyncio.gather(*(last(llm, prompt, greedy(), "same") for prompt in prompts))

    outputs = go(main)
    assert answers(outputs) == expected
    assert [output.request_id for output in outputs] == ["same", "same"]


@pytest.mark.parametrize(
    ("prompt", "params", "priority"),
    [
        ([], SamplingParams(), 0),
        ([5] * 200, SamplingParams(), 0),
        ([5], SamplingParams(stop_token_ids=[10**9]), 0),
        ([5], {"temperature": 0}, 0),
        ([5], None, 0),
        ([5], SamplingParams(), "high"),
        ({"prompt_token_ids": [5], "cache_salt": 5}, SamplingParams(), 0),
    ],
    ids=str,
)
def test_an_input_error_is_raised_in_the_caller_and_others_go_on(
    llm: AsyncLLM, prompt: Any, params: Any, priority: Any
) -> None:
    async def main() -> tuple[Any, RequestOutput]:
        bad, good = await asyncio.gather(
            last(llm, prompt, params, priority=priority), last(llm, [7, 8], greedy()), return_exceptions=True
        )
        assert not isinstance(good, BaseException)
        return bad, good

    bad, good = go(main)
    assert isinstance(bad, InputError)
    assert only(good).finish_reason == "length"


def test_parameters_changed_while_a_request_runs_do_not_matter(llm: AsyncLLM) -> None:
    async def main() -> RequestOutput:
        params, outputs = greedy(max_tokens=8), []
        async for output in llm.generate([5, 6], params, "r"):
            outputs.append(output)
            params.max_tokens, params.n, params.temperature = 1, 5, "hot"  # type: ignore[assignment]
        return outputs[-1]

    assert len(only(go(main)).token_ids) == 8


def test_a_second_event_loop_can_use_the_engine(llm: AsyncLLM) -> None:
    found = [only(go(lambda: last(llm, [5, 6, 7], greedy()))).token_ids for _ in range(2)]
    assert found[0] == found[1]


def test_small_verbs(llm: AsyncLLM) -> None:
    async def main() -> None:
        await llm.check_health()
        tokenizer = await llm.get_tokenizer()
        assert tokenizer is not None
        assert tokenizer.encode("Hello")
        await llm.reset_prefix_cache()

    go(main)


# The end --------------------------------------------------------------------------------------------------------------


def test_shutdown_tells_open_requests_and_leaves_no_thread(tiny_checkpoints: Any) -> None:
    before = set(threading.enumerate())
    llm = make(tiny_checkpoints("Llama")[0], max_num_seqs=2)
    slow_down(llm)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(last(llm, [i + 1], LONG)) for i in range(4)]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(llm.shutdown)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(EngineDeadError, match="shut down"):
            await last(llm, [5], greedy())
        with pytest.raises(EngineDeadError):
            await llm.check_health()
        return results

    results = go(main)
    assert all(isinstance(result, EngineDeadError) for result in results)
    llm.shutdown()
    left = {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("motet")}
    assert not left


def test_a_failed_step_is_told_to_every_request(tiny_checkpoints: Any) -> None:
    llm = make(tiny_checkpoints("Llama")[0], max_num_seqs=2)
    runner: Any = llm.engine.core.runner
    run, num_runs = runner.executor.run, 0

    def failing(batch: Any) -> Any:
        nonlocal num_runs
        num_runs += 1
        if num_runs == 6:
            raise ZeroDivisionError("broken")
        return run(batch)

    runner.executor.run = failing

    async def main() -> list[Any]:
        results = await asyncio.gather(*(last(llm, [i + 1], LONG) for i in range(4)), return_exceptions=True)
        with pytest.raises(EngineDeadError, match="broken"):
            await last(llm, [5], greedy())
        with pytest.raises(EngineDeadError, match="broken"):
            await llm.check_health()
        return results

    results = go(main)
    assert all(isinstance(result, EngineDeadError) and "broken" in str(result) for result in results)
    llm.shutdown()
    assert not llm._thread.is_alive()


def test_a_request_that_comes_while_the_engine_dies_is_told_too(
    tiny_checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has passed the first look at the engine's health, and nobody takes commands any more."""
    llm = make(tiny_checkpoints("Llama")[0])
    parse = llm.engine.parse

    def slow_parse(*args: Any) -> Any:
        parsed = parse(*args)
        llm.shutdown()
        return parsed

    monkeypatch.setattr(llm.engine, "parse", slow_parse)
    with pytest.raises(EngineDeadError, match="shut down"):
        go(lambda: last(llm, [5], greedy()))
