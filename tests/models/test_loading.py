"""Loading: every way in which files can be complete, and every way in which they can be wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from motet.core.config import EngineArgs
from motet.core.errors import ConfigError, LoadError, MotetError, UnsupportedError
from motet.models.checkpoint import METHOD_FILES, Checkpoint, locate, open_checkpoint
from motet.models.loader import resolve_dtype, resolve_max_model_len
from motet.models.sources import INDEX, SafetensorsSource
from tests.checkpoints import save_model
from tests.conftest import TinyCheckpoints
from tests.models.forward import load, run_logits

Tensors = dict[str, torch.Tensor]
TOKEN_IDS = list(range(3, 30))
WEIGHTS = "model.safetensors"


def logits(model: Path | str, **options: Any) -> torch.Tensor:
    return run_logits(load(model, **options), TOKEN_IDS, 27)


def model_config(model: Path | str, **options: Any) -> Any:
    return EngineArgs.from_options({"model": str(model), **options}).resolve().model


@pytest.fixture
def folder(tmp_path: Path, tiny_checkpoints: TinyCheckpoints) -> Path:
    """A copy of the Llama checkpoint that a test may spoil."""
    return Path(shutil.copytree(tiny_checkpoints("Llama")[0], tmp_path / "model"))


def edit_tensors(folder: Path, edit: Callable[[Tensors], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / WEIGHTS)


def edit_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(values)
    (folder / "config.json").write_text(json.dumps(config))


def shard(folder: Path) -> list[Path]:
    """Turn the one file of weights into three and an index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = [f"model-{part + 1:05d}-of-00003.safetensors" for part in range(3)]
    weight_map = {name: names[i % 3] for i, name in enumerate(tensors)}
    for file in names:
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return [folder / name for name in names]


def test_shards_are_the_same_model(folder: Path) -> None:
    expected = logits(folder)
    shard(folder)
    assert torch.equal(logits(folder), expected)


def test_shards_without_an_index(folder: Path) -> None:
    expected = logits(folder)
    shard(folder)
    (folder / INDEX).unlink()
    assert torch.equal(logits(folder), expected)


def test_released_files_are_opened_again(folder: Path) -> None:
    expected = load_file(folder / WEIGHTS)
    shard(folder)
    source = SafetensorsSource(folder)
    found = {}
    for name, tensor in expected.items():
        found[name] = source.get(name, tuple(tensor.shape), torch.float32)
        source.release()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_tensor_in_two_shards(folder: Path) -> None:
    shards = shard(folder)
    shutil.copy(shards[0], folder / "other.safetensors")
    assert logits(folder).isfinite().all()  # not in the index, so not looked at
    (folder / INDEX).unlink()
    with pytest.raises(LoadError, match=r"tensor '.*' is in both '.*00001-of-00003.*' and 'other.safetensors'"):
        load(folder)


def test_a_missing_shard(folder: Path) -> None:
    shard(folder)[1].unlink()
    with pytest.raises(LoadError, match=r"00002-of-00003.safetensors' is named in .*index.json but missing"):
        load(folder)


@pytest.mark.parametrize("content", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "{}"])
def test_a_damaged_index(folder: Path, content: str) -> None:
    (folder / INDEX).write_text(content)
    with pytest.raises(LoadError, match="is not a valid index"):
        load(folder)


@pytest.mark.parametrize("size", [0, 4, 8, 100, 10_000, -1])
def test_a_truncated_file(folder: Path, size: int) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:size])
    with pytest.raises(LoadError, match=r"model.safetensors' is truncated or damaged"):
        load(folder)


def test_a_foreign_file(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"PK\x03\x04" * 1000)
    with pytest.raises(LoadError, match=r"model.safetensors' is truncated or damaged"):
        load(folder)


K_PROJ = "model.layers.1.self_attn.k_proj.weight"
SPOILT: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "missing": (lambda tensors: tensors.pop(K_PROJ), rf"tensor '{K_PROJ}' is missing"),
    "extra": (
        lambda tensors: tensors.update({"model.layers.1.self_attn.q_norm.weight": torch.ones(16)}),
        "tensors that its architecture does not use: model.layers.1.self_attn.q_norm.weight;",
    ),
    "extra layer": (
        lambda tensors: tensors.update({name.replace(".1.", ".2."): t for name, t in tensors.items() if ".1." in name}),
        r"does not use: model.layers.2.input_layernorm.weight, .*\.\.\. \(9 in all\)",
    ),
    "shape": (
        lambda tensors: tensors.update({K_PROJ: torch.zeros(64, 64)}),
        rf"'{K_PROJ}' in .* has shape \(64, 64\), but the config asks for \(32, 64\)",
    ),
    "half merged": (
        lambda tensors: tensors.update({"model.layers.1.self_attn.qkv_proj.weight": tensors.pop(K_PROJ)}),
        rf"tensor '{K_PROJ}' is missing",
    ),
    "bias": (
        lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}),
        "does not use: model.layers.0.self_attn.q_proj.bias",
    ),
    "no head": (lambda tensors: tensors.pop("lm_head.weight"), "tensor 'lm_head.weight' is missing"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_tensors_that_do_not_fit(folder: Path, kind: str) -> None:
    edit, message = SPOILT[kind]
    edit_tensors(folder, edit)
    with pytest.raises(LoadError, match=message):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_quantised_tensors_are_not_taken_for_numbers(folder: Path, dtype: torch.dtype) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({K_PROJ: torch.ones(32, 64).to(dtype)}))
    with pytest.raises(UnsupportedError, match=rf"'{K_PROJ}' .* is quantised \({str(dtype)[6:]}\)"):
        load(folder)


def test_tied_embeddings_with_and_without_a_head(tmp_path: Path) -> None:
    """A tied head that is stored all the same only repeats the embedding."""
    oracle = save_model(tmp_path, "Qwen3", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / WEIGHTS)
    expected = logits(tmp_path)
    edit_tensors(
        tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    )
    assert torch.equal(logits(tmp_path), expected)
    with torch.inference_mode():
        torch.testing.assert_close(expected, oracle(torch.tensor([TOKEN_IDS])).logits[0], atol=1e-4, rtol=0)


def test_dummy_weights_need_no_files(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    first, second = logits(folder, load_format="dummy"), logits(folder, load_format="dummy")
    assert torch.equal(first, second)
    assert first.isfinite().all()
    assert first.std() > 0


@pytest.mark.parametrize("family", ["Gemma3", "GPT2", "Bloom", "Mixtral", "Qwen3Moe", "Phi3"])
def test_dummy_weights_of_other_families(family: str, tiny_checkpoints: TinyCheckpoints) -> None:
    assert logits(tiny_checkpoints(family)[0], load_format="dummy").isfinite().all()


def test_overrides_change_the_config(folder: Path) -> None:
    assert (logits(folder, hf_overrides={"rms_norm_eps": 0.5}) - logits(folder)).abs().max() > 1e-3
    with pytest.raises(UnsupportedError, match="architecture 'Lama' is not supported; supported: BloomForC"):
        load(folder, hf_overrides={"architectures": ["Lama"]})
    with pytest.raises(LoadError, match="num_hidden_layers"):
        load(folder, hf_overrides={"num_hidden_layers": "many"})
    with pytest.raises(LoadError, match=r"num_attention_heads .4. is not a multiple of num_key_value_heads .3."):
        load(folder, hf_overrides={"num_key_value_heads": 3})
    with pytest.raises(LoadError, match="head_size must be at least 1"):
        load(folder, hf_overrides={"head_dim": 0})


@pytest.mark.parametrize(("family", "key"), [("Llama", "rope_theta"), ("Gemma3", "rope_theta")])
def test_an_override_of_theta_reaches_the_rope_parameters(
    family: str, key: str, tiny_checkpoints: TinyCheckpoints, tmp_path: Path
) -> None:
    save_model(tmp_path, family, **{key: 100.0})
    assert torch.equal(logits(tiny_checkpoints(family)[0], hf_overrides={key: 100.0}), logits(tmp_path))


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedError, match="has pickled weights only; convert them to safetensors"):
        load(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(LoadError, match=r"has no \*.safetensors file"):
        load(folder)


def test_an_unknown_architecture(folder: Path) -> None:
    edit_config(folder, architectures=["LlamaForSequenceClassification"])
    with pytest.raises(UnsupportedError, match="architecture 'LlamaForSequenceClassification' is not supported"):
        load(folder)
    edit_config(folder, architectures=None)
    with pytest.raises(LoadError, match="does not name its architectures"):
        load(folder)


@pytest.mark.parametrize(
    ("values", "method"),
    [
        *(({"quant_method": name}, name) for name in ("awq", "gptq", "fp8", "bitsandbytes", "mxfp4")),
        ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "compressed-tensors"),
        ({"load_in_8bit": True, "load_in_4bit": False}, "bitsandbytes"),
        ({"bits": 4}, r"an unknown method .*bits"),
    ],
    ids=str,
)
def test_quantised_checkpoints_are_named(folder: Path, values: dict[str, Any], method: str) -> None:
    for key in ("quantization_config", "compression_config"):
        edit_config(folder, **{key: values})
        with pytest.raises(UnsupportedError, match=rf"is quantised with {method}.*; Motet runs floating checkpoints"):
            load(folder)
        edit_config(folder, **{key: None})
    load(folder)


@pytest.mark.parametrize(("file", "method"), METHOD_FILES.items())
def test_quantised_checkpoints_of_older_tools_are_named(folder: Path, file: str, method: str) -> None:
    (folder / file).write_text("{}")
    with pytest.raises(UnsupportedError, match=f"is quantised with {method}, which is not supported"):
        load(folder)


def test_gguf_is_asked_for_in_vain(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"quantization='gguf' needs a GGUF file, but .* is a folder of safetensors"):
        load(folder, quantization="gguf")


@pytest.mark.parametrize("content", ["", "{", "[1]", "\xff"])
def test_a_damaged_config(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(LoadError, match=r"config.json' (is not valid JSON|holds a JSON list)"):
        load(folder)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_config_without_a_size(folder: Path, key: str) -> None:
    edit_config(folder, **{key: None})
    with pytest.raises(LoadError, match=rf"config of 'llama': .*{key}"):
        load(folder)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no-such-model", r"no packaged model \(smollm2, gemma3-270m\) and does not look like a hub id"),
        ("./no/such", "is no folder, no GGUF file"),
        ("some/model.gguf", "is no folder, no GGUF file"),
        ("some-owner/no-such-model", "hub cannot be reached and no copy is in the local cache; give a local path"),
        ("some owner/model", "cannot be fetched: Repo id must use"),
    ],
)
def test_models_that_are_nowhere(model: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(LoadError, match=message) as caught:
        open_checkpoint(model_config(model))
    assert "\n" not in str(caught.value)


def test_a_hub_id_in_the_local_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cached = tmp_path / "hub" / "models--owner--name"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, cached / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert locate("owner/name").name == "0" * 40


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"neither config.json nor a \*.gguf file"):
        load(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(LoadError, match=r"has 2 GGUF models; name the one to use: a.gguf, b.gguf"):
        load(tmp_path)


def test_dtypes(folder: Path) -> None:
    def resolved(**options: Any) -> str:
        config = model_config(folder, **options)
        return resolve_dtype(config, open_checkpoint(config))

    assert resolved() == "float32"
    assert resolved(hf_overrides={"dtype": "bfloat16"}) == "bfloat16"
    assert resolved(hf_overrides={"dtype": None, "torch_dtype": "float16"}) == "float16"
    assert resolved(dtype="half") == "float16"
    weight = load(folder, dtype="bfloat16").model.embed.table  # type: ignore[attr-defined]
    assert weight.dtype == torch.bfloat16


# What configs say, and how many positions the model has.
LENGTHS = [
    ({"max_position_embeddings": 100}, 100),
    ({"n_positions": 100}, 100),
    ({"seq_length": 100}, 100),
    ({}, None),
    ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 4.0}}, 400),
    ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}, 400),
    ({"max_position_embeddings": 100, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 200),
    # Llama 3.1: scaled already
    ({"max_position_embeddings": 100, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 100),
    # Phi-3: scaled already
    ({"max_position_embeddings": 100, "rope_scaling": {"type": "longrope", "factor": 8.0}}, 100),
    # Qwen 2.5 with the yarn lines of its model card; DeepSeek and gpt-oss, which give the scaled length
    ({"max_position_embeddings": 100, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 400),
    (
        {
            "max_position_embeddings": 100,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100},
        },
        400,
    ),
    (
        {
            "max_position_embeddings": 400,
            "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100},
        },
        400,
    ),
    # Gemma 3, before and after transformers 5
    (
        {
            "model_type": "gemma3_text",
            "max_position_embeddings": 100,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        100,
    ),
    (
        {
            "model_type": "gemma3_text",
            "max_position_embeddings": 100,
            "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}},
        },
        100,
    ),
]


@pytest.mark.parametrize(("values", "expected"), LENGTHS, ids=str)
def test_context_lengths(values: dict[str, Any], expected: int | None) -> None:
    checkpoint = Checkpoint(where="here", config=values, source=None)  # type: ignore[arg-type]
    assert resolve_max_model_len(model_config("x"), checkpoint) == (expected or 2048)
    assert resolve_max_model_len(model_config("x", max_model_len=50), checkpoint) == 50
    if expected is None:
        assert resolve_max_model_len(model_config("x", max_model_len=10**6), checkpoint) == 10**6
    else:
        with pytest.raises(ConfigError, match=rf"max_model_len={expected + 1} is beyond the {expected} positions"):
            resolve_max_model_len(model_config("x", max_model_len=expected + 1), checkpoint)


def test_errors_are_one_line(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.pop(K_PROJ))
    with pytest.raises(MotetError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
