"""With the CPU kernels a request's logprobs are the same bits, whatever adapters its mates have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from motet.core.lora import LoRARequest
from motet.core.params import SamplingParams
from motet.ops import cpu
from tests.checkpoints import save_model
from tests.engine import driver
from tests.engine.driver import answer_bits, make_engine, random_prompts
from tests.lora.adapters import generate, linear_shapes, lora_engine, request, write_adapter
from tests.models.gguf_files import write_gguf

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the bits are the kernels' promise")

LENGTHS = (1, 30, 9, 27, 17, 33)
PARAMS = [
    SamplingParams(temperature=temperature, seed=i, max_tokens=13, ignore_eos=True, logprobs=4)
    for i, temperature in enumerate((0.0, 1.0, 0.8, 1.2, 0.0, 1.0))
]


def three_adapters(root: Path, model: Any) -> list[LoRARequest | None]:
    """For six requests: two without any, and three adapters of different ranks, of which two requests share one."""
    shapes = linear_shapes(model)
    attention = {name: shape for name, shape in shapes.items() if "att" in name}
    first, second, third = (
        request(write_adapter(root / f"adapter-{index}", some, rank, index), index)
        for index, (some, rank) in enumerate(((shapes, 4), (attention, 16), (shapes, 9)), 1)
    )
    return [first, None, second, third, None, first]


def bits(engine: Any, prompts: Sequence[list[int]], adapters: Sequence[LoRARequest | None]) -> list[Any]:
    return [answer_bits(output) for output in generate(engine, prompts, PARAMS, adapters)]


def assert_same_bits(folder: Path, adapters: Sequence[LoRARequest | None], **options: Any) -> None:
    prompts = random_prompts(LENGTHS)
    single = lora_engine(folder, enable_prefix_caching=False, max_loras=1, **options)
    expected = [
        answer_bits(generate(single, [prompt], one, [adapter])[0])
        for prompt, one, adapter in zip(prompts, PARAMS, adapters, strict=True)
    ]
    batched = lora_engine(folder, **options)
    assert bits(batched, prompts, adapters) == expected
    assert bits(batched, prompts, adapters) == expected  # from the prefix cache
    chunked = lora_engine(folder, max_num_batched_tokens=7, async_scheduling=False, **options)
    assert bits(chunked, prompts, adapters) == expected
    few_slots = lora_engine(folder, max_loras=2, enforce_eager=True, threads=2, **options)
    assert bits(few_slots, prompts, adapters) == expected
    crowded = lora_engine(folder, max_model_len=48, num_blocks_override=16, **options)
    assert bits(crowded, prompts, adapters) == expected
    assert crowded.core.scheduler.stats.num_preemptions > 0
    plain = make_engine(folder, **options)
    base = [answer_bits(output) for output in driver.generate(plain, prompts, PARAMS)]
    assert [mine == other for mine, other in zip(base, expected, strict=True)] == [one is None for one in adapters]


@pytest.mark.parametrize(
    ("family", "dtype", "quantization"),
    [
        ("Llama", "float32", None),
        ("Llama", "bfloat16", None),
        ("Gemma3", "float16", None),
        ("Bloom", "bfloat16", None),
        ("Llama", "bfloat16", "int8"),
        ("Qwen3", "float32", "int4"),
    ],
)
def test_logprobs_are_the_same_bits(
    family: str, dtype: str, quantization: str | None, tiny_checkpoints: Any, tmp_path: Path
) -> None:
    folder, model = tiny_checkpoints(family)
    assert_same_bits(folder, three_adapters(tmp_path, model), dtype=dtype, quantization=quantization)


def test_over_a_quantised_file_too(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_key_value_heads": 2}
    model = save_model(tmp_path, "Llama", **sizes)
    adapters = three_adapters(tmp_path / "adapters", model)
    assert_same_bits(write_gguf(tmp_path, "Llama", tmp_path / "model.gguf", "Q4_K"), adapters, dtype="bfloat16")


def test_drafts_change_nothing(tiny_checkpoints: Any, tmp_path: Path) -> None:
    folder, model = tiny_checkpoints("Llama")
    adapters = three_adapters(tmp_path, model)
    prompts = [prompt[:5] * 4 for prompt in random_prompts([5] * 6)]
    drafting = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    plain, drafts = (bits(lora_engine(folder, **options), prompts, adapters) for options in ({}, drafting))
    assert drafts == plain


def test_an_engine_without_adapters_has_no_node_for_them(tiny_checkpoints: Any) -> None:
    folder, _ = tiny_checkpoints("Llama")
    names = []
    for engine in (make_engine(folder), lora_engine(folder)):
        program = engine.core.runner.executor.recorded.program  # type: ignore[attr-defined]
        names.append({program._recorder.node_name(node) for node in range(program.num_nodes)})
    assert names[1] - names[0] == {"lora_shrink", "lora_expand"}
