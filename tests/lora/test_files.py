"""Reading adapters: what is refused, and by what name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from motet.core.errors import InputError, LoadError, UnsupportedError
from motet.core.lora import LoRARequest
from motet.lora.peft import PeftConfig, read_adapter
from motet.nn.lora import AdapterSite
from tests.lora.adapters import Shapes, request, write_adapter

SHAPES: Shapes = {
    f"model.layers.{layer}.self_attn.{name}_proj": (out, 8) for layer in (0, 1) for name, out in (("q", 8), ("v", 4))
}
SITES = {name: AdapterSite(name, num_inputs, out, False) for name, (out, num_inputs) in SHAPES.items()}
Q = "model.layers.0.self_attn.q_proj"


def read(folder: Path, max_rank: int = 16) -> Any:
    return read_adapter(request(folder, 1), SITES, torch.float32, max_rank)


def test_scales_and_shapes(tmp_path: Path) -> None:
    pairs = read(write_adapter(tmp_path, SHAPES, 4, lora_alpha=6, rank_pattern={"0.self_attn.q_proj": 9})).pairs
    assert set(pairs) == set(SHAPES)
    assert {name: pair.scale for name, pair in pairs.items()} == {name: 6 / (9 if name == Q else 4) for name in SHAPES}
    assert {name: tuple(pair.a.shape) for name, pair in pairs.items()} == {
        name: (9 if name == Q else 4, 8) for name in SHAPES
    }


def test_rslora_and_patterns() -> None:
    config = PeftConfig(r=4, lora_alpha=6, use_rslora=True, rank_pattern={"q_proj": 16}, alpha_pattern={r"l.*\.1": 3})
    assert [config.scale_of(name) for name in ("a.k_proj", "a.q_proj", "a.xq_proj", "a.layer.1")] == [3, 1.5, 3, 1.5]


def test_the_key_is_of_name_and_content(tmp_path: Path) -> None:
    first, other = write_adapter(tmp_path / "a", SHAPES, seed=1), write_adapter(tmp_path / "b", SHAPES, seed=2)
    same = write_adapter(tmp_path / "c", SHAPES, seed=1)
    sites = (SITES, torch.float32, 16)
    keys = [read_adapter(LoRARequest("x", 1, str(path)), *sites).key for path in (first, other, same)]
    assert keys[0] == keys[2] != keys[1]
    assert read_adapter(LoRARequest("y", 1, str(first)), *sites).key != keys[0]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias='all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters"),
    ],
)
def test_what_is_not_built_is_named(config: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=named):
        read(write_adapter(tmp_path, SHAPES, **config))


@pytest.mark.parametrize(
    ("name", "error", "named"),
    [
        ("model.embed_tokens.lora_embedding_A", UnsupportedError, "embeddings or lm_head"),
        ("lm_head.lora_A.weight", UnsupportedError, "embeddings or lm_head"),
        (f"{Q}.lora_magnitude_vector", UnsupportedError, "DoRA"),
        ("model.layers.7.self_attn.q_proj.lora_A.weight", LoadError, r"layers\.7"),
        ("model.layers.0.mlp.experts.0.up_proj.lora_A.weight", LoadError, "experts"),
    ],
)
def test_tensors_that_fit_nothing_are_named(name: str, error: type[Exception], named: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, SHAPES, extra={f"base_model.model.{name}": torch.zeros(4, 8)})
    with pytest.raises(error, match=named):
        read(folder)


def test_another_models_names(tmp_path: Path) -> None:
    """An adapter that would have no effect, or only half of it, is refused (vllm#34186)."""
    with pytest.raises(LoadError, match=r"has tensors for no linear layer.*wrong\.model.*8 in all"):
        read(write_adapter(tmp_path / "all", SHAPES, prefix="wrong."))
    for target in (["q_proj", "v_proj"], "all-linear", r".*\.[qv]_proj"):
        with pytest.raises(LoadError, match=r"no tensors for model\.layers\.1\.self_attn\.q_proj"):
            read(write_adapter(tmp_path / "half", SHAPES, drop=["layers.1"], target_modules=target))
    assert len(read(write_adapter(tmp_path / "one", SHAPES, drop=["layers.1"], layers_to_transform=[0])).pairs) == 2
    excluded = write_adapter(tmp_path / "two", SHAPES, drop=["v_proj"], exclude_modules=["v_proj"])
    assert len(read(excluded).pairs) == 2


def test_sizes_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"lora_B of .*q_proj.*\[9, 4\].*\[8, 4\]"):
        read(write_adapter(tmp_path / "wide", {**SHAPES, Q: (9, 8)}))
    with pytest.raises(LoadError, match=r"rank 20 .* max_lora_rank=16"):
        read(write_adapter(tmp_path / "rank", SHAPES, 20))
    with pytest.raises(LoadError, match="rank 5 and the model"):
        read(write_adapter(tmp_path / "config", SHAPES, 4, rank_pattern={}, r=5))
    with pytest.raises(LoadError, match="no lora_B for"):
        read(write_adapter(tmp_path / "side", SHAPES, drop=["q_proj.lora_B"]))
    assert read(write_adapter(tmp_path / "most", SHAPES, 256), max_rank=256).pairs[Q].a.shape == (256, 8)


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"adapter_config\.json cannot be read"):
        read(tmp_path / "nowhere")
    folder = write_adapter(tmp_path / "bad", SHAPES)
    (folder / "adapter_model.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(LoadError, match="damaged"):
        read(folder)
    (folder / "adapter_config.json").write_text(json.dumps({"r": "many"}))
    with pytest.raises(LoadError, match="damaged"):
        read(folder)
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(LoadError, match="damaged"):
        read(folder)


@pytest.mark.parametrize("values", [("a", 0, "path"), ("", 1, "path"), ("a", 1, ""), ("a", "one", "path")])
def test_requests_are_checked(values: Any) -> None:
    with pytest.raises(InputError):
        LoRARequest(*values)
