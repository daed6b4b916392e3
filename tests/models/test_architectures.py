"""Every architecture against transformers: logits of whole and chunked prompts, shorter and longer than the window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from motet.models.registry import ARCHITECTURES
from tests.checkpoints import CONFIGS, VOCAB_SIZE, save_model
from tests.conftest import TinyCheckpoints
from tests.models.forward import load, run_logits

TOKEN_IDS = torch.randint(0, VOCAB_SIZE, (45,), generator=torch.Generator().manual_seed(1)).tolist()
# Values that tiny checkpoints do not have, for keys that change the results but no tensor's shape.
VALUES: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {"hidden_act": "gelu"}),
    ("Llama", {"rms_norm_eps": 0.5}),
    ("Llama", {"rope_theta": 100.0}),
    ("Mistral", {"sliding_window": 5}),
    ("Mistral", {"sliding_window": None}),
    ("Qwen2", {"use_sliding_window": False}),
    ("Qwen2", {"sliding_window": 5}),
    ("Qwen2", {"max_window_layers": 0}),
    ("Qwen2", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
    ("Qwen2", {"tie_word_embeddings": False}),
    ("Qwen3", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 5}),
    ("Qwen3Moe", {"norm_topk_prob": False}),
    ("Qwen3Moe", {"num_experts_per_tok": 3}),
    ("Qwen3Moe", {"use_sliding_window": True, "sliding_window": 5}),
    ("Gemma2", {"query_pre_attn_scalar": 50}),
    ("Gemma2", {"attn_logit_softcapping": None}),
    ("Gemma2", {"final_logit_softcapping": 1.0}),
    ("Gemma2", {"hidden_activation": "silu"}),
    ("Gemma2", {"layer_types": ["full_attention"] * 4}),
    ("Gemma3", {"final_logit_softcapping": 1.0}),
    ("Gemma3", {"sliding_window": 5}),
    ("Gemma3", {"layer_types": ["sliding_attention", "full_attention"] * 2}),
    ("Gemma3", {"rope_scaling": None}),
    ("Gemma3", {"rope_theta": 1e4}),
    ("Gemma3", {"rope_local_base_freq": 1e2}),
    ("GPT2", {"scale_attn_weights": False}),
    ("GPT2", {"scale_attn_by_inverse_layer_idx": True}),
    ("GPT2", {"activation_function": "relu"}),
    ("GPT2", {"layer_norm_epsilon": 0.5}),
    ("Bloom", {"layer_norm_epsilon": 0.5}),
    ("Mixtral", {"num_experts_per_tok": 1}),
    ("Mixtral", {"sliding_window": None}),
    ("Phi3", {"partial_rotary_factor": 1.0, "rope_scaling": None}),
    ("Phi3", {"sliding_window": 5}),
]


def expected_logits(oracle: Any, token_ids: list[int] = TOKEN_IDS) -> torch.Tensor:
    with torch.inference_mode():
        return oracle(torch.tensor([token_ids])).logits[0]


def assert_same(folder: Path, oracle: Any, length: int = 45, chunk: int = 45, **options: Any) -> None:
    actual = run_logits(load(folder, **options), TOKEN_IDS[:length], chunk)
    torch.testing.assert_close(actual, expected_logits(oracle, TOKEN_IDS[:length]), atol=1e-4, rtol=0)


def rewrite_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("family", CONFIGS)
def test_logits_equal_transformers(family: str, tiny_checkpoints: TinyCheckpoints) -> None:
    folder, oracle = tiny_checkpoints(family)
    loaded = load(folder)
    for length in (5, 45):
        expected = expected_logits(oracle, TOKEN_IDS[:length])
        for chunk in (1, 7, length):
            actual = run_logits(loaded, TOKEN_IDS[:length], chunk)
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_every_architecture_has_a_family(tiny_checkpoints: TinyCheckpoints) -> None:
    configs = [json.loads((tiny_checkpoints(family)[0] / "config.json").read_text()) for family in CONFIGS]
    assert {config["architectures"][0] for config in configs} == set(ARCHITECTURES)


@pytest.mark.parametrize(("family", "values"), VALUES, ids=str)
def test_config_values_mean_what_transformers_means(
    family: str, values: dict[str, Any], tiny_checkpoints: TinyCheckpoints, tmp_path: Path
) -> None:
    """The same value in both; and the results differ from those without it, so that it was not ignored by both."""
    plain = expected_logits(tiny_checkpoints(family)[1])
    oracle = save_model(tmp_path, family, **values)
    expected = expected_logits(oracle)
    assert (expected - plain).abs().max() > 1e-3
    torch.testing.assert_close(run_logits(load(tmp_path), TOKEN_IDS, 45), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["Qwen3Moe", "Mixtral"])
def test_experts_in_one_tensor(family: str, tmp_path: Path, tiny_checkpoints: TinyCheckpoints) -> None:
    oracle = tiny_checkpoints(family)[1]
    oracle.save_pretrained(tmp_path, save_original_format=False)
    assert any(name.endswith(".mlp.experts.gate_up_proj") for name in load_file(tmp_path / "model.safetensors"))
    assert_same(tmp_path, oracle)


@pytest.mark.parametrize("family", ["GPT2", "Bloom"])
def test_names_without_prefix(family: str, tmp_path: Path, tiny_checkpoints: TinyCheckpoints) -> None:
    """Checkpoints of the first days have bare names, and GPT-2's also its causal masks."""
    folder, oracle = tiny_checkpoints(family)
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    if family == "GPT2":
        bare["h.0.attn.bias"] = torch.ones(1, 1, 256, 256)
    save_file(bare, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert_same(tmp_path, oracle)


def test_other_names_of_config_keys(tmp_path: Path) -> None:
    """With a wrong number of heads BLOOM's tensors would fit, too: the other name must not fall back on a default."""
    oracle = save_model(tmp_path, "Bloom")
    config = json.loads((tmp_path / "config.json").read_text())
    config.update(num_attention_heads=config.pop("n_head"), n_embed=config.pop("hidden_size"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_same(tmp_path, oracle)


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Olmo2", "Qwen3", "Qwen3Moe"])
def test_attention_biases(family: str, tmp_path: Path) -> None:
    assert_same(tmp_path, save_model(tmp_path, family, attention_bias=True))


def test_mlp_biases(tmp_path: Path) -> None:
    assert_same(tmp_path, save_model(tmp_path, "Llama", mlp_bias=True))


def test_mistral_without_a_word_about_its_window_has_one(tmp_path: Path) -> None:
    """transformers' default is 4096, and null is no window."""
    oracle = save_model(tmp_path, "Mistral", sliding_window=4096)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["sliding_window"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert {spec.window for spec in load(tmp_path).states.values()} == {4096}
    assert_same(tmp_path, oracle)
    rewrite_config(tmp_path, sliding_window=None)
    assert {spec.window for spec in load(tmp_path).states.values()} == {None}


def test_windows_of_layers(tiny_checkpoints: TinyCheckpoints) -> None:
    windows = {
        family: [spec.window for spec in load(tiny_checkpoints(family)[0]).states.values()]
        for family in ("Qwen2", "Gemma2", "Gemma3")
    }
    assert windows == {
        "Qwen2": [None, None, 12, 12],
        "Gemma2": [12, None, 12, None],
        "Gemma3": [12, 12, None, 12],
    }


@pytest.mark.parametrize("family", CONFIGS)
def test_bfloat16_is_near(family: str, tiny_checkpoints: TinyCheckpoints) -> None:
    folder, oracle = tiny_checkpoints(family)
    expected = expected_logits(oracle)
    actual = run_logits(load(folder, dtype="bfloat16"), TOKEN_IDS, 45)
    assert actual.dtype == torch.float32
    assert (actual - expected).abs().mean() < 0.1 * expected.std()


def test_older_gemma3_configs(tmp_path: Path) -> None:
    """Before transformers 5: flat rope keys and a pattern in place of layer types."""
    oracle = save_model(tmp_path, "Gemma3")
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("rope_parameters", "layer_types", "_sliding_window_pattern"):
        del config[key]
    config.update(
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        sliding_window_pattern=3,
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_same(tmp_path, oracle)
