"""Rope tables against transformers', bit for bit, and what parameters mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from motet.core.errors import LoadError, UnsupportedError
from motet.nn.rope import RopeParameters, rope_parameters, rope_table
from tests.checkpoints import LONG_FACTORS, VOCAB_SIZE, save_model
from tests.models.forward import load, run_logits

LONG = [1.0 + 0.37 * i for i in range(16)]
SHORT = [1.0 + 0.01 * i for i in range(16)]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": SHORT,
    "long_factor": LONG,
    "original_max_position_embeddings": 64,
}
# Values of `rope_parameters`, as in a config of transformers 5.
VARIANTS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 3.0},
    LLAMA3,
    {**LLAMA3, "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0},
    YARN,
    {**YARN, "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.0},
    {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    {**YARN, "attention_factor": 1.25, "beta_fast": 20.0, "beta_slow": 2.0},
    {**YARN, "truncate": False},
    {**YARN, "factor": 1.0},
    {"rope_type": "yarn", "factor": 4.0},
    LONGROPE,
    {**LONGROPE, "factor": 5.0},
    {**LONGROPE, "attention_factor": 1.5},
    {**LONGROPE, "original_max_position_embeddings": 256},
]
TRAINED_LEN = 256


def rope_type(value: Any) -> str:
    """A short name for a test's id."""
    return str(value["rope_type"]) if isinstance(value, dict) else str(value)


HEAD_SIZE = 32


def llama_config(parameters: dict[str, Any], theta: float) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4 * HEAD_SIZE,
        num_attention_heads=4,
        max_position_embeddings=TRAINED_LEN,
        rope_parameters={"rope_theta": theta, **parameters},
    )


def table_of_transformers(config: Any, seq_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As its rotary modules make it, with the frequencies of sequences of `seq_len`."""
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        frequencies, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=seq_len)
    angles = torch.arange(seq_len)[:, None].float() * frequencies
    return angles.cos() * factor, angles.sin() * factor


@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("max_model_len", [40, 256, 1000])
@pytest.mark.parametrize("parameters", VARIANTS, ids=rope_type)
def test_tables_are_those_of_transformers(parameters: dict[str, Any], max_model_len: int, theta: float) -> None:
    config = llama_config(dict(parameters), theta)
    expected = table_of_transformers(config, max_model_len)
    read = rope_parameters({"rope_parameters": {"rope_theta": theta, **parameters}})
    actual = rope_table(read, HEAD_SIZE, max_model_len, TRAINED_LEN)
    for one, wanted in zip(actual, expected, strict=True):
        assert one.shape == (max_model_len, HEAD_SIZE // 2)
        assert torch.equal(one, wanted)


@pytest.mark.parametrize("parameters", [VARIANTS[0], LLAMA3, YARN, LONGROPE], ids=rope_type)
def test_tables_are_those_of_the_rotary_module(parameters: dict[str, Any]) -> None:
    module = LlamaRotaryEmbedding(llama_config(dict(parameters), 1e4))
    cos, sin = (part[0, :, : HEAD_SIZE // 2] for part in module(torch.zeros(1), torch.arange(64).unsqueeze(0)))
    read = rope_parameters({"rope_parameters": {"rope_theta": 1e4, **parameters}})
    actual = rope_table(read, HEAD_SIZE, 64, TRAINED_LEN)
    assert torch.equal(actual[0], cos)
    assert torch.equal(actual[1], sin)


@pytest.mark.parametrize("partial", [0.5, 0.75, 0.4])
def test_a_part_of_the_head(partial: float) -> None:
    config = Phi3Config(
        hidden_size=4 * HEAD_SIZE,
        num_attention_heads=4,
        num_key_value_heads=4,
        pad_token_id=0,
        partial_rotary_factor=partial,
    )
    cos, _ = Phi3RotaryEmbedding(config)(torch.zeros(1), torch.arange(20).unsqueeze(0))
    parameters = rope_parameters({"partial_rotary_factor": partial})
    actual, _ = rope_table(parameters, HEAD_SIZE, 20, TRAINED_LEN)
    assert torch.equal(actual, cos[0, :, : cos.shape[-1] // 2])


def test_frequency_factors_divide() -> None:
    plain = RopeParameters()
    factors = [1.0 + i for i in range(16)]
    actual, _ = rope_table(RopeParameters(freq_factors=factors), HEAD_SIZE, 9, 9)
    angles = torch.acos(rope_table(plain, HEAD_SIZE, 2, 2)[0][1])
    torch.testing.assert_close(actual[1], torch.cos(angles / torch.tensor(factors)))


# Prompts of 45 tokens. transformers changes its frequencies with the length of the prompt, we with max_model_len.
SIDES = [
    ({"rope_type": "dynamic", "factor": 4.0}, 64, 64, 45),
    ({"rope_type": "dynamic", "factor": 4.0}, 32, 45, 45),
    ({"rope_type": "dynamic", "factor": 4.0}, 32, 30, 30),
    ({"rope_type": "linear", "factor": 4.0}, 256, 256, 45),
    (LLAMA3, 256, 256, 45),
    ({**YARN, "original_max_position_embeddings": 32}, 128, 128, 45),
    ({**LONGROPE, "short_factor": SHORT[:8], "long_factor": LONG[:8]}, 256, 64, 45),
    (
        {**LONGROPE, "short_factor": SHORT[:8], "long_factor": LONG[:8], "original_max_position_embeddings": 30},
        256,
        256,
        45,
    ),
    (
        {**LONGROPE, "short_factor": SHORT[:8], "long_factor": LONG[:8], "original_max_position_embeddings": 30},
        256,
        30,
        30,
    ),
]


@pytest.mark.parametrize(("parameters", "trained_len", "max_model_len", "prompt_len"), SIDES, ids=rope_type)
def test_logits_on_either_side_of_the_boundary(
    parameters: dict[str, Any], trained_len: int, max_model_len: int, prompt_len: int, tmp_path: Path
) -> None:
    oracle = save_model(
        tmp_path,
        "Llama",
        max_position_embeddings=trained_len,
        rope_parameters={"rope_theta": 1e4, **parameters},
    )
    token_ids = torch.randint(0, VOCAB_SIZE, (prompt_len,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = oracle(torch.tensor([token_ids])).logits[0]
    loaded = load(tmp_path, max_model_len=max_model_len)
    for chunk in (7, prompt_len):
        actual = run_logits(loaded, token_ids, chunk, max_model_len)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_the_first_names_of_longrope(tmp_path: Path) -> None:
    """Phi-3's configs have called it su and yarn."""
    save_model(tmp_path, "Phi3")
    token_ids = list(range(30))
    expected = run_logits(load(tmp_path), token_ids, 30)
    for name in ("su", "yarn"):
        scaling = {"type": name, "factor": 4.0, "short_factor": LONG_FACTORS, "long_factor": [1.0] * 6}
        changed = run_logits(load(tmp_path, hf_overrides={"rope_scaling": scaling}), token_ids, 30)
        assert torch.equal(changed, expected)


def test_old_and_new_configs_mean_the_same() -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 64}
    new = rope_parameters({"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **scaling}})
    assert new == rope_parameters({"rope_theta": 5e5, "rope_scaling": {"type": "yarn", **scaling}})
    assert new == rope_parameters({"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", **scaling}})
    assert new.rope_theta == 5e5
    assert rope_parameters({}) == RopeParameters()
    assert rope_parameters({}, default_theta=7.0).rope_theta == 7.0
    assert rope_parameters({"rope_scaling": None, "rope_theta": None}) == RopeParameters()


def test_which_of_two_values_counts() -> None:
    new = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    overridden = rope_parameters({"rope_parameters": new, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    assert overridden == RopeParameters(rope_type="linear", factor=2.0, rope_theta=5e5, partial_rotary_factor=0.5)
    beside = rope_parameters({"rope_parameters": LONGROPE, "original_max_position_embeddings": 9})
    assert beside.original_max_position_embeddings == 9
    assert rope_parameters({"rope_parameters": new, "rope_theta": 1.0}).rope_theta == 5e5


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "linear"}, "rope type 'linear' needs 'factor'"),
        ({"rope_type": "dynamic"}, "rope type 'dynamic' needs 'factor'"),
        ({"rope_type": "llama3"}, "rope type 'llama3' needs 'factor'"),
        ({"rope_type": "longrope"}, "rope type 'longrope' needs 'long_factor'"),
        ({**LONGROPE, "long_factor": LONG[:3]}, "long_factor of the rope parameters has 3 values, but 16 are needed"),
        ({"freq_factors": [1.0]}, "rope_freqs of the rope parameters has 1 values, but 16 are needed"),
        ({"rope_type": "linear", "factor": "much"}, "rope parameters of the config: .*factor"),
        ({"rope_type": "linear", "factor": 0.0}, "factor must be greater than 0, got 0.0"),
        ({"rope_theta": -1.0}, "rope_theta must be greater than 0"),
        ({"partial_rotary_factor": 0.01}, "cannot rotate 0 of 32 dimensions"),
        ({"partial_rotary_factor": 1.5}, "cannot rotate 48 of 32 dimensions"),
    ],
    ids=str,
)
def test_parameters_that_do_not_fit(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        rope_table(rope_parameters({"rope_parameters": parameters}), HEAD_SIZE, 100, 50)


def test_unknown_types_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"rope type 'spiral' is not supported; supported: .*yarn"):
        rope_table(RopeParameters(rope_type="spiral"), HEAD_SIZE, 4, 4)
