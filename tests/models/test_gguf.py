"""GGUF files against the safetensors checkpoints that they were made from, and against everything that can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from motet.core.config import EngineArgs
from motet.core.errors import LoadError, UnsupportedError
from motet.models.checkpoint import Checkpoint, open_checkpoint
from motet.models.gguf import GGUFFile
from tests.checkpoints import VOCAB_SIZE, save_model
from tests.conftest import TinyCheckpoints
from tests.models.forward import load, run_logits
from tests.models.gguf_files import ARCHITECTURES, save_rounded, write_gguf

TOKEN_IDS = torch.randint(0, VOCAB_SIZE, (45,), generator=torch.Generator().manual_seed(1)).tolist()
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def logits(model: Path, **options: Any) -> torch.Tensor:
    return run_logits(load(model, dequantized=True, **options), TOKEN_IDS, 45)


def assert_same(gguf_path: Path, folder: Path, atol: float = 0.0) -> None:
    torch.testing.assert_close(logits(gguf_path), logits(folder), atol=atol, rtol=0)


def opened(path: Path) -> Checkpoint:
    return open_checkpoint(EngineArgs.from_options({"model": str(path)}).resolve().model)


@pytest.fixture(scope="module")
def llama(tiny_checkpoints: TinyCheckpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny_checkpoints("Llama")[0], "Llama", tmp_path_factory.mktemp("gguf") / "llama.gguf")


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_logits_equal_the_original(family: str, kind: str, tmp_path: Path) -> None:
    # GGUF does not tell Qwen2's window: llama.cpp has none there.
    save_model(tmp_path / "hf", family, **({"use_sliding_window": False} if family == "Qwen2" else {}))
    save_rounded(tmp_path / "hf", tmp_path / "rounded", kind)
    entries = {"attention.sliding_window_pattern": 3} if family == "Gemma3" else {}
    path = write_gguf(tmp_path / "hf", family, tmp_path / "model.gguf", kind, **entries)
    # Gemma's norms lose a bit when 1 is added and taken away again; its scale is not in the file: 1 / sqrt(head size).
    if family == "Gemma3":
        rescaled = {"query_pre_attn_scalar": 24}
        torch.testing.assert_close(logits(path), logits(tmp_path / "rounded", hf_overrides=rescaled), atol=1e-5, rtol=0)
    else:
        assert_same(path, tmp_path / "rounded")


@pytest.mark.parametrize(
    "rope",
    [
        LLAMA3,
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rope_scaling(rope: dict[str, Any], tmp_path: Path) -> None:
    save_model(tmp_path / "plain", "Llama")
    save_model(tmp_path / "hf", "Llama", rope_parameters=rope)
    assert (logits(tmp_path / "hf") - logits(tmp_path / "plain")).abs().max() > 1e-3
    assert_same(write_gguf(tmp_path / "hf", "Llama", tmp_path / "model.gguf"), tmp_path / "hf", atol=1e-4)


def test_a_factor_without_a_type_is_linear(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    save_model(tmp_path / "hf", "Llama", rope_parameters=rope)
    path = write_gguf(tmp_path / "hf", "Llama", tmp_path / "model.gguf", **{"rope.scaling.type": None})
    assert_same(path, tmp_path / "hf")


def test_attention_biases_are_found(tmp_path: Path) -> None:
    save_model(tmp_path / "hf", "Llama", attention_bias=True)
    assert_same(write_gguf(tmp_path / "hf", "Llama", tmp_path / "model.gguf"), tmp_path / "hf")


def test_gemma_layer_flags_and_scale(tmp_path: Path) -> None:
    save_model(tmp_path / "hf", "Gemma3")
    flags = [True, False, True, True]
    path = write_gguf(tmp_path / "hf", "Gemma3", tmp_path / "a.gguf", **{"attention.sliding_window_pattern": flags})
    config = opened(path).config
    assert config["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    assert config["query_pre_attn_scalar"] == 24
    path = write_gguf(tmp_path / "hf", "Gemma3", tmp_path / "b.gguf", block_count=62)
    assert opened(path).config["query_pre_attn_scalar"] == 64 // 4


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "float32"), ("F16", "float16"), ("Q8_0", "bfloat16")])
def test_own_dtype(kind: str, dtype: str, tiny_checkpoints: TinyCheckpoints, tmp_path: Path) -> None:
    path = write_gguf(tiny_checkpoints("Llama")[0], "Llama", tmp_path / "model.gguf", kind)
    assert opened(path).config["dtype"] == dtype


def test_two_parts(tiny_checkpoints: TinyCheckpoints, tmp_path: Path) -> None:
    folder = tiny_checkpoints("Llama")[0]
    first = write_gguf(folder, "Llama", tmp_path / "model.gguf", parts=2)
    second = first.with_name("model-00002-of-00002.gguf")
    assert second.is_file()
    for path in (first, second, tmp_path):
        assert_same(path, folder)
    renamed = first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(LoadError, match="is one of 2 parts of a model"):
        GGUFFile(renamed)
    with pytest.raises(LoadError, match=r"00001-of-00002.gguf' does not exist: a part of the model is missing"):
        GGUFFile(second)


def test_released_memory_is_read_again(llama: Path) -> None:
    file, other = GGUFFile(llama), GGUFFile(llama)
    views = {name: file.raw(name) for name in file.tensors}
    copies = {name: view.clone() for name, view in views.items()}
    file.release()
    assert all(torch.equal(views[name], copies[name]) for name in views)
    assert all(torch.equal(file.raw(name), other.raw(name)) for name in views)


def test_every_cut_is_noticed(llama: Path, tmp_path: Path) -> None:
    whole = llama.read_bytes()
    header = min(info.offset for info in GGUFFile(llama).tensors.values())
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, header, 13), *range(header, len(whole), 4099), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(LoadError, match=r"cut.gguf' is (truncated or damaged|not a GGUF file)"):
            GGUFFile(cut)


def test_damaged_headers_are_errors_of_ours(llama: Path, tmp_path: Path) -> None:
    """Whatever a flipped byte does, it ends in a model of the same shape or in one of our errors."""
    whole = bytearray(llama.read_bytes())
    header = min(info.offset for info in GGUFFile(llama).tensors.values())
    generator = np.random.default_rng(0)
    bad = tmp_path / "bad.gguf"
    num_errors = 0
    for position in generator.integers(0, header, 300).tolist():
        damaged = bytearray(whole)
        damaged[position] ^= int(generator.integers(1, 256))
        bad.write_bytes(damaged)
        try:
            file = GGUFFile(bad)
        except (LoadError, UnsupportedError):
            num_errors += 1
        else:
            assert len(file.tensors) <= len(GGUFFile(llama).tensors)
    assert num_errors > 50


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(LoadError, match=r"is not a GGUF file: it begins with b'PK"):
        opened(path)
    path.write_bytes(b"")
    with pytest.raises(LoadError, match="is not a GGUF file"):
        opened(path)
    path.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(100))
    with pytest.raises(UnsupportedError, match="has GGUF version 1; supported: 2 and 3"):
        opened(path)


def test_unsupported_tensor_types_are_named(llama: Path, tmp_path: Path) -> None:
    damaged = bytearray(llama.read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = damaged.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions and the dimensions
    path = tmp_path / "model.gguf"
    for number, shown in ((10, "Q2_K"), (11, "Q3_K"), (16, "IQ2_XXS"), (34, "TQ1_0"), (39, "MXFP4"), (999, "999")):
        damaged[at : at + 4] = number.to_bytes(4, "little")
        path.write_bytes(damaged)
        with pytest.raises(UnsupportedError, match=rf"'blk.0.ffn_up.weight' has GGUF type {shown}, .*Q4_K"):
            opened(path)


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        ({"expert_count": 8}, UnsupportedError, "llama.expert_count=8"),
        ({"attention.clamp_kqv": 8.0}, UnsupportedError, "llama.attention.clamp_kqv=8.0"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, LoadError, "'longrope' needs 'short_factor'"),
        ({"rope.scaling.type": "spiral"}, UnsupportedError, "rope type 'spiral' is not supported"),
        ({"context_length": None}, LoadError, "lacks the entry 'context_length'"),
        ({"attention.head_count": [4, 4]}, LoadError, "entry of the wrong type"),
        ({"attention.head_count_kv": [2, 2]}, LoadError, "num_key_value_heads"),
        ({"embedding_length": 128}, LoadError, "has shape .*config and weights do not belong together"),
        ({"block_count": 1}, LoadError, r"tensors that its architecture does not use: model.layers.1"),
        ({"block_count": 3}, LoadError, r"'model.layers.2.self_attn.q_proj.weight' is missing"),
    ],
    ids=str,
)
def test_entries_that_do_not_fit(
    entries: dict[str, Any], error: type[Exception], message: str, tiny_checkpoints: TinyCheckpoints, tmp_path: Path
) -> None:
    path = write_gguf(tiny_checkpoints("Llama")[0], "Llama", tmp_path / "model.gguf", **entries)
    with pytest.raises(error, match=message):
        load(path)


def test_unknown_architecture_is_named(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(llama.read_bytes().replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0lemur", 1))
    with pytest.raises(UnsupportedError, match=r"GGUF architecture 'lemur' is not supported; supported: gemma3, llama"):
        opened(path)


def test_dummy_weights_of_gguf(llama: Path) -> None:
    dummy = logits(llama, load_format="dummy")
    assert dummy.isfinite().all()
    assert (dummy - logits(llama)).abs().max() > 1e-3


def test_overrides_reach_gguf(llama: Path) -> None:
    changed = logits(llama, hf_overrides={"rope_theta": 100.0})
    assert (changed - logits(llama)).abs().max() > 1e-3
