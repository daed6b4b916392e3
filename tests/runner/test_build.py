"""The parts fit together for every dtype, and what does not fit the memory is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from motet.core.errors import CapacityError, ConfigError
from motet.core.logs import get_logger
from motet.ops.cpu import is_available
from motet.runner import build
from motet.runner.threads import ThreadCount
from tests.engine.driver import alone, answers, generate, greedy, make_engine, oracle_greedy, random_prompts
from tests.models.gguf_files import write_gguf

LENGTHS = (1, 9, 30)


@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_end_to_end(tiny_checkpoints: Any, family: str, dtype: str) -> None:
    folder, _ = tiny_checkpoints(family)
    engine = make_engine(folder, dtype=dtype)
    states = engine.core.runner.executor.states  # type: ignore[attr-defined]
    assert states.paged("model.layers.0.self_attn").k.dtype == getattr(torch, dtype)
    prompts = random_prompts(LENGTHS)
    outputs = generate(engine, prompts, greedy(logprobs=1))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [12] * len(LENGTHS)
    # The first token is clear enough to be float32's. (Later ones follow a rounded history.)
    full = alone(make_engine(folder), prompts, greedy(max_tokens=1))
    assert [ids[:1] for ids in answers(outputs)] == full


def test_the_log_tells_what_the_weights_are(
    tiny_checkpoints: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get_logger(), "propagate", True)  # to where pytest listens
    folder = tiny_checkpoints("Llama")[0]
    path = write_gguf(folder, "Llama", tmp_path / "model.gguf", "Q8_0")
    with caplog.at_level("INFO", logger="motet"):
        make_engine(path, dtype="bfloat16")
        make_engine(folder, quantization="int4")
    of_file, of_folder = dict.fromkeys(message for message in caplog.messages if message.startswith("weights"))
    assert of_file.startswith("weights: 16 Q8_0, 5 F32; 0.1 MiB; activations bfloat16; KV cache full: ")
    assert of_folder.startswith("weights: float32, linear layers quantised to int4; 0.1 MiB; activations float32; KV")


def test_a_cache_of_lower_precision_than_the_model(tiny_checkpoints: Any) -> None:
    folder, oracle = tiny_checkpoints("Llama")
    engine = make_engine(folder, kv_cache_dtype="bfloat16", kv_cache_memory_bytes=1 << 16)
    full = make_engine(folder, kv_cache_memory_bytes=1 << 16)
    assert engine.capacity.num_blocks[0] - 1 == 2 * (full.capacity.num_blocks[0] - 1)
    prompts = random_prompts(LENGTHS)
    together = answers(generate(engine, prompts, greedy()))
    assert together == alone(engine, prompts, greedy())
    chunked = make_engine(folder, kv_cache_dtype="bfloat16", max_num_batched_tokens=3)
    assert together == answers(generate(chunked, prompts, greedy()))
    assert [ids[:1] for ids in together] == [oracle_greedy(oracle, prompt, 1) for prompt in prompts]


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
@pytest.mark.parametrize("ops", ["cpu", "reference"])
def test_a_cache_of_one_byte(
    tiny_checkpoints: Any, kv_cache_dtype: str, ops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ops == "cpu" and not is_available():
        pytest.skip("installed without the C++ kernels")
    monkeypatch.setenv("MOTET_OPS", ops)
    folder, oracle = tiny_checkpoints("Llama")
    engine = make_engine(folder, kv_cache_dtype=kv_cache_dtype, kv_cache_memory_bytes=1 << 16)
    half = make_engine(folder, kv_cache_dtype="bfloat16", kv_cache_memory_bytes=1 << 16)
    # Heads of 16: 32 bytes in bfloat16, 20 with a scale.
    assert (engine.capacity.num_blocks[0] - 1) * 20 == pytest.approx((half.capacity.num_blocks[0] - 1) * 32, abs=20)
    prompts = random_prompts(LENGTHS)
    together = answers(generate(engine, prompts, greedy()))
    assert [ids[:1] for ids in together] == [oracle_greedy(oracle, prompt, 1) for prompt in prompts]


def test_a_cache_larger_than_the_memory_is_refused(tiny_checkpoints: Any) -> None:
    folder, _ = tiny_checkpoints("Llama")
    with pytest.raises(CapacityError, match=r"KV cache that was asked for.*lower .*num_blocks_override"):
        make_engine(folder, num_blocks_override=1 << 40)


@pytest.mark.parametrize(
    ("available", "complaint"),
    [
        (500_000, "one step alone needs .* lower max_num_seqs or max_num_batched_tokens, or raise gpu_memory_util"),
        (600_000, "one request of max_model_len=128 tokens needs 0.1 MiB of KV cache.*lower max_model_len to at most"),
    ],
)
def test_too_little_memory(
    tiny_checkpoints: Any, monkeypatch: pytest.MonkeyPatch, available: int, complaint: str
) -> None:
    folder, _ = tiny_checkpoints("Llama")
    monkeypatch.setattr(build, "available_bytes", lambda: available)
    with pytest.raises(CapacityError, match=complaint):
        make_engine(folder, kv_cache_memory_bytes=None)


def test_a_share_of_the_memory_is_taken(tiny_checkpoints: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = tiny_checkpoints("Llama")
    monkeypatch.setattr(build, "available_bytes", lambda: 800_000)
    sizes = [
        make_engine(folder, kv_cache_memory_bytes=None, gpu_memory_utilization=share).capacity.num_blocks[0]
        for share in (0.5, 1.0)
    ]
    per_block = 4 * 2 * 2 * 2 * 16 * 4  # tokens, K and V, layers, heads, head size, bytes
    assert sizes[1] - sizes[0] == pytest.approx(400_000 / per_block, abs=2)


def test_ops_can_be_chosen_and_a_wrong_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_OPS", "reference")
    assert build.choose_backends()[0].name == "reference"
    monkeypatch.setenv("MOTET_OPS", "gpu")
    with pytest.raises(ConfigError, match=r"MOTET_OPS must be .*'gpu'"):
        build.choose_backends()


def test_the_sampler_is_that_of_the_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_OPS", "auto")
    expected = "CpuSampler" if is_available() else "Sampler"
    assert type(build.choose_sampler(build.choose_backends()[0])).__name__ == expected
    monkeypatch.setenv("MOTET_OPS", "reference")
    assert type(build.choose_sampler(build.choose_backends()[0])).__name__ == "Sampler"


def test_threads_follow_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "default_threads", lambda: ThreadCount(8, 8, 3.5))
    before = torch.get_num_threads()
    try:
        build.set_threads(1)
        assert torch.get_num_threads() == 1
        build.set_threads(None)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
