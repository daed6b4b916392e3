"""With the CPU kernels even logprobs are the same bits: batched, chunked, cached, preempted, threaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from motet.core.outputs import RequestOutput
from motet.core.params import SamplingParams
from motet.ops import cpu
from tests.checkpoints import CONFIGS, save_model
from tests.engine.driver import answer_bits, generate, make_engine, random_prompts
from tests.models.gguf_files import write_gguf

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the bits are the kernels' promise")

LENGTHS = (1, 30, 9, 27, 17, 33)
PARAMS = [
    SamplingParams(temperature=temperature, seed=i, max_tokens=13, ignore_eos=True, logprobs=4)
    for i, temperature in enumerate((0.0, 1.0, 0.8, 1.2, 0.0, 1.0))
]


def bits(outputs: Sequence[RequestOutput]) -> list[Any]:
    return [answer_bits(output) for output in outputs]


def alone_bits(model: Path, prompts: Sequence[list[int]], **options: Any) -> list[Any]:
    engine = make_engine(model, enable_prefix_caching=False, **options)
    return [bits(generate(engine, [prompt], one))[0] for prompt, one in zip(prompts, PARAMS, strict=True)]


def assert_same_bits(model: Path, **options: Any) -> None:
    prompts = random_prompts(LENGTHS)
    expected = alone_bits(model, prompts, **options)
    batched = make_engine(model, **options)
    assert bits(generate(batched, prompts, PARAMS)) == expected
    assert bits(generate(batched, prompts, PARAMS)) == expected  # from the prefix cache
    chunked = make_engine(model, max_num_batched_tokens=7, async_scheduling=False, **options)
    assert bits(generate(chunked, prompts, PARAMS)) == expected
    crowded = make_engine(model, max_model_len=48, num_blocks_override=16, **options)
    assert bits(generate(crowded, prompts, PARAMS)) == expected
    assert crowded.core.scheduler.stats.num_preemptions > 0


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [("float32", None), ("bfloat16", None), ("float16", None), ("bfloat16", "int8"), ("float32", "int4")],
)
@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_logprobs_are_the_same_bits(family: str, dtype: str, quantization: str | None, tiny_checkpoints: Any) -> None:
    assert_same_bits(tiny_checkpoints(family)[0], dtype=dtype, quantization=quantization)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("Q4_1", "bfloat16"), ("Q8_0", "float16"), ("Q4_K", "float32"), ("Q6_K", "bfloat16")]
)
def test_quantised_files_too(kind: str, dtype: str, tmp_path: Path) -> None:
    save_model(tmp_path, "Llama", hidden_size=256, intermediate_size=256, num_key_value_heads=2)
    assert_same_bits(write_gguf(tmp_path, "Llama", tmp_path / "model.gguf", kind), dtype=dtype)


def test_threads_and_block_size_do_not_change_a_bit(tiny_checkpoints: Any) -> None:
    folder = tiny_checkpoints("Llama")[0]
    prompts = random_prompts((100, 3, 60, 17, 33, 90))
    expected = alone_bits(folder, prompts, dtype="bfloat16")
    for options in ({"threads": 2}, {"threads": 3, "block_size": 16}, {"block_size": 1, "max_num_batched_tokens": 33}):
        assert bits(generate(make_engine(folder, dtype="bfloat16", **options), prompts, PARAMS)) == expected


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_caches_of_one_byte_keep_the_promise(family: str, kv_cache_dtype: str, tiny_checkpoints: Any) -> None:
    folder = tiny_checkpoints(family)[0]
    prompts = random_prompts(LENGTHS)
    options: dict[str, Any] = {"dtype": "bfloat16", "kv_cache_dtype": kv_cache_dtype}
    expected = alone_bits(folder, prompts, **options)
    assert expected != alone_bits(folder, prompts, dtype="bfloat16")
    batched = make_engine(folder, **options, threads=2)
    assert bits(generate(batched, prompts, PARAMS)) == expected
    assert bits(generate(batched, prompts, PARAMS)) == expected  # from the prefix cache
    chunked = make_engine(folder, **options, max_num_batched_tokens=7, async_scheduling=False)
    assert bits(generate(chunked, prompts, PARAMS)) == expected
    assert bits(generate(make_engine(folder, **options, enforce_eager=True), prompts, PARAMS)) == expected
    crowded = make_engine(folder, **options, max_model_len=48, num_blocks_override=16)
    assert bits(generate(crowded, prompts, PARAMS)) == expected
    assert crowded.core.scheduler.stats.num_preemptions > 0
