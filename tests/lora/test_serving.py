"""Adapters come and go while the engine serves."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from motet import LLM, AsyncLLM, LoRARequest
from motet.core.errors import ConfigError, InputError, LoadError
from motet.core.params import SamplingParams
from motet.engine.engine import Engine
from tests.engine.driver import answers, greedy, make_engine, only, random_prompts, run
from tests.lora.adapters import add, generate, linear_shapes, lora_engine, request, write_adapter

PROMPT = random_prompts([21])[0]  # five blocks


@pytest.fixture(scope="module")
def llama(tiny_checkpoints: Any) -> Path:
    folder: Path = tiny_checkpoints("Llama")[0]
    return folder


@pytest.fixture(scope="module")
def adapters(tiny_checkpoints: Any, tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    """Eight of them."""
    shapes, root = linear_shapes(tiny_checkpoints("Llama")[1]), tmp_path_factory.mktemp("adapters")
    return [request(write_adapter(root / str(index), shapes, 1 + index, index), index) for index in range(1, 9)]


def cold(folder: Path, adapter: LoRARequest | None, prompt: list[int] = PROMPT) -> list[int]:
    return answers(generate(lora_engine(folder), [prompt], greedy(), [adapter]))[0]


def resident(engine: Engine) -> int:
    return len(engine.core.scheduler._adapters._slots)


def test_more_adapters_than_slots(llama: Path, adapters: list[LoRARequest]) -> None:
    """They wait for their turn, and get their own answers."""
    engine = lora_engine(llama, max_loras=2, max_cpu_loras=3)
    wanted = [None, *adapters, *adapters[::-1], adapters[0]]
    prompts = random_prompts([5] * len(wanted))
    found = answers(generate(engine, prompts, greedy(max_tokens=5), wanted))
    each = lora_engine(llama, max_loras=1)
    assert found == [
        answers(generate(each, [prompt], greedy(max_tokens=5), [one]))[0]
        for prompt, one in zip(prompts, wanted, strict=True)
    ]
    assert len({tuple(answer) for answer in found}) > 8
    assert resident(engine) == 2
    assert len(engine.adapters._kept) == 3  # type: ignore[attr-defined]
    assert engine.list_loras() == set(range(1, 9))


def test_at_most_max_loras_run_together(llama: Path, adapters: list[LoRARequest]) -> None:
    engine = lora_engine(llama, max_loras=2)
    for one in (adapters[0], None, adapters[1], adapters[1], adapters[2], None):
        add(engine, PROMPT, greedy(), one)
    engine.step()
    engine.check()
    stats = engine.core.scheduler.stats
    assert (stats.num_running, stats.num_waiting) == (4, 2)  # the last one does not overtake
    run(engine)


def test_base_and_adapters_share_no_blocks(llama: Path, adapters: list[LoRARequest]) -> None:
    engine = lora_engine(llama)
    for adapter in (adapters[0], None, adapters[1]):
        outputs = [generate(engine, [PROMPT], greedy(), [adapter])[0] for _ in range(2)]
        assert [output.num_cached_tokens for output in outputs] == [0, 20]
        assert answers(outputs) == [cold(llama, adapter)] * 2


@pytest.mark.parametrize("way", ["overwritten", "load_inplace", "removed"])
def test_another_content_under_the_same_name(way: str, llama: Path, tiny_checkpoints: Any, tmp_path: Path) -> None:
    """Neither weights nor cached blocks of the old content are used any more (vllm#42125)."""
    shapes = linear_shapes(tiny_checkpoints("Llama")[1])
    engine = lora_engine(llama)
    old = LoRARequest("x", 1, str(write_adapter(tmp_path / "a", shapes, seed=1)))
    before = answers(generate(engine, [PROMPT], greedy(), [old]))[0]
    new = old
    if way == "overwritten":
        write_adapter(tmp_path / "a", shapes, seed=2)
    else:
        new = LoRARequest("x", 1, str(write_adapter(tmp_path / "b", shapes, seed=2)), way == "load_inplace")
        if way == "removed":
            assert engine.remove_lora(1)
            assert not engine.remove_lora(1)
    (output,) = generate(engine, [PROMPT], greedy(), [new])
    assert output.num_cached_tokens == 0
    assert only(output).token_ids == cold(llama, new) != before


def test_a_running_request_keeps_its_adapter(llama: Path, tiny_checkpoints: Any, tmp_path: Path) -> None:
    shapes = linear_shapes(tiny_checkpoints("Llama")[1])
    adapter = request(write_adapter(tmp_path, shapes, seed=1), 1)
    expected = cold(llama, adapter)
    engine = lora_engine(llama, max_loras=1)
    running = [add(engine, PROMPT, greedy(), adapter) for _ in range(2)]  # one waits for its first step
    for _ in range(3):
        engine.step()
    write_adapter(tmp_path, shapes, seed=2)
    newer = add(engine, PROMPT, greedy(), adapter)  # waits: the only slot is in use
    assert engine.remove_lora(1)
    for name in os.listdir(tmp_path):
        (tmp_path / name).unlink()
    done = run(engine)
    assert [only(done[key]).token_ids for key in running] == [expected] * 2
    assert only(done[newer]).token_ids != expected
    assert engine.list_loras() == set()


def test_requests_that_end_before_their_adapter_is_loaded(llama: Path, adapters: list[LoRARequest]) -> None:
    engine = lora_engine(llama, max_loras=1, max_cpu_loras=1)
    for one in adapters * 2:
        key = add(engine, PROMPT, greedy(), one)
        engine.step()
        engine.abort([key])
        engine.check()
    (output,) = generate(engine, [PROMPT], greedy(), adapters[:1])
    assert only(output).token_ids == cold(llama, adapters[0])


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_and_wake(level: int, llama: Path, adapters: list[LoRARequest]) -> None:
    engine = lora_engine(llama, max_loras=2)
    expected = answers(generate(engine, [PROMPT] * 2, greedy(), adapters[:2]))
    engine.sleep(level)
    assert resident(engine) == 0
    engine.wake_up()
    assert answers(generate(engine, [PROMPT] * 2, greedy(), adapters[:2])) == expected


def test_errors_name_the_adapter(llama: Path, adapters: list[LoRARequest], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'adapter-1' needs an engine with enable_lora=True"):
        make_engine(llama).adapter(adapters[0])
    engine = lora_engine(llama, max_lora_rank=4)
    with pytest.raises(LoadError, match=r"adapter-7.* rank 8 .*max_lora_rank=4"):
        engine.add_lora(adapters[6])
    with pytest.raises(LoadError, match="adapter-1"):
        engine.add_lora(request(tmp_path, 1))
    assert engine.list_loras() == set()
    assert engine.add_lora(adapters[0])
    with pytest.raises(InputError, match="lora_int_id 1 is adapter 'adapter-1'"):
        engine.add_lora(request(Path(adapters[1].lora_path), 1))
    with pytest.raises(InputError, match="must be a LoRARequest, got 'adapter-1'"):
        engine.adapter("adapter-1")  # type: ignore[arg-type]
    for options in ({"max_loras": 0}, {"max_lora_rank": 257}, {"max_loras": 3, "max_cpu_loras": 2}):
        with pytest.raises(ConfigError, match=next(reversed(options))):
            lora_engine(llama, **options)


def test_llm_takes_one_or_a_list(llama: Path, adapters: list[LoRARequest]) -> None:
    llm = LLM(
        str(llama), dtype="float32", enable_lora=True, max_loras=2, kv_cache_memory_bytes=1 << 24, max_model_len=128
    )
    prompts: Any = [PROMPT, PROMPT]
    both = [cold(llama, None), cold(llama, adapters[0])]
    assert answers(llm.generate(prompts, greedy(), lora_request=[None, adapters[0]])) == both
    assert answers(llm.generate(prompts, greedy(), lora_request=adapters[0])) == [both[1]] * 2
    assert answers(llm.generate(prompts, greedy())) == [both[0]] * 2
    with pytest.raises(InputError, match="2 prompts, but 1 lora_request"):
        llm.generate(prompts, greedy(), lora_request=[None])
    llm.shutdown()


def test_async_llm(llama: Path, adapters: list[LoRARequest]) -> None:
    async def ask(engine: AsyncLLM, name: str, adapter: LoRARequest | None) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        outputs = [output async for output in engine.generate(PROMPT, params, name, lora_request=adapter)]
        return only(outputs[-1]).token_ids

    async def session() -> None:
        engine = AsyncLLM.from_options(
            model=str(llama),
            dtype="float32",
            enable_lora=True,
            max_loras=1,
            kv_cache_memory_bytes=1 << 24,
            max_model_len=128,
            threads=1,
        )
        wanted = [None, adapters[0], adapters[1]]
        found = await asyncio.gather(*(ask(engine, str(index), one) for index, one in enumerate(wanted)))
        assert found == [cold(llama, one) for one in wanted]
        assert await engine.add_lora(adapters[2])
        assert await engine.list_loras() == {1, 2, 3}
        assert await engine.remove_lora(1)
        with pytest.raises(LoadError, match="nowhere"):
            await ask(engine, "bad", LoRARequest("nowhere", 9, "nowhere"))
        engine.shutdown()

    asyncio.run(session())
