"""EngineArgs: an unknown, wrong, contradictory or not yet served option is one clear error, at construction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from motet.core.config import NOT_YET, EngineArgs
from motet.core.errors import ConfigError, UnsupportedError


def make(**options: Any) -> EngineArgs:
    return EngineArgs.from_options({"model": "somewhere", **options})


def test_an_unknown_option_with_and_without_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown option 'max_num_seq'; did you mean 'max_num_seqs'"):
        make(max_num_seq=4)
    with pytest.raises(ConfigError, match=r"unknown option 'qqq'$"):
        make(qqq=1)


def test_the_model_is_needed() -> None:
    with pytest.raises(ConfigError, match="'model'"):
        EngineArgs.from_options({"dtype": "auto"})
    with pytest.raises(ConfigError, match="model must be"):
        make(model="")


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_options_not_served_yet_are_refused_by_name_unless_they_ask_for_nothing(name: str) -> None:
    for nothing in NOT_YET[name]:
        assert make(**{name: nothing}) == make()
    with pytest.raises(UnsupportedError, match=f"{name}='something'"):
        make(**{name: "something"})


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "int8"},
        {"dtype": "fp8"},
        {"kv_cache_dtype": "fp8_e5m2"},
        {"kv_cache_dtype": "int4"},
        {"load_format": "pt"},
        {"max_model_len": 1},
        {"max_logprobs": -2},
        {"generation_config": "mine"},
        {"block_size": 0},
        {"block_size": 2048},
        {"gpu_memory_utilization": 0.0},
        {"gpu_memory_utilization": 1.5},
        {"gpu_memory_utilization": float("nan")},
        {"kv_cache_memory_bytes": 0},
        {"num_blocks_override": 1},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 0},
        {"scheduling_policy": "lottery"},
        {"device": "cuda"},
        {"threads": 0},
        {"threads": 10**6},
        {"block_size": "16"},
        {"max_model_len": 64.5},
        {"enable_prefix_caching": "yes"},
        {"hf_overrides": print},
        {"tokenizer": 5},
    ],
    ids=str,
)
def test_wrong_values_name_the_option_and_the_value(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ConfigError, match=f"^{name} must be ") as caught:
        make(**options)
    assert repr(value)[:20] in str(caught.value)
    with pytest.raises(ConfigError, match=f"^{name} must be "):
        EngineArgs(model="somewhere", **options)


@pytest.mark.parametrize("name", ["awq", "gptq", "fp8", "compressed-tensors", "bitsandbytes", "mxfp4", "int3"])
def test_other_ways_to_quantise_are_named(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"quantization='{name}' is not supported; Motet runs .*'int8'"):
        make(quantization=name)
    for known, scheme in (("int8", "int8"), ("int4", "int4"), ("gguf", None), (None, None)):
        assert make(quantization=known).resolve().model.scheme == scheme


def test_two_names_of_one_option() -> None:
    assert make(num_gpu_blocks_override=8).num_blocks_override == 8
    assert make(num_gpu_blocks_override=8, num_blocks_override=8).num_blocks_override == 8
    with pytest.raises(ConfigError, match="num_blocks_override is given under two names, as 8 and as 9"):
        make(num_gpu_blocks_override=8, num_blocks_override=9)


def test_spellings_that_mean_the_same() -> None:
    assert make(dtype=torch.bfloat16).resolve().model.dtype == "bfloat16"
    assert make(dtype="half").resolve().model.dtype == "float16"
    assert make(kv_cache_dtype="bf16").resolve().cache.kv_cache_dtype == "bfloat16"
    assert make(kv_cache_dtype="int8").resolve().cache.kv_cache_dtype == "int8"
    for name in ("fp8", "fp8_e4m3"):
        assert make(kv_cache_dtype=name).resolve().cache.kv_cache_dtype == "float8_e4m3fn"
    assert EngineArgs.from_options({"model": Path("models") / "one"}).model == "models/one"


def test_resolving_hands_every_option_on() -> None:
    config = make(max_num_seqs=3, scheduling_policy="priority", block_size=8, seed=5, threads=2).resolve()
    assert (config.scheduler.max_num_seqs, config.scheduler.policy) == (3, "priority")
    assert (config.cache.block_size, config.model.seed, config.device.threads) == (8, 5, 2)
    with pytest.raises(AttributeError):
        config.cache.block_size = 16  # type: ignore[misc]
