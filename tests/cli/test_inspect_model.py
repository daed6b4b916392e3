"""`motet inspect` tells, without reading weights, what loading would find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from motet.core.config import EngineArgs
from motet.engine.engine import Engine
from tests.checkpoints import CONFIGS, save_model
from tests.cli.conftest import RunCommand
from tests.conftest import TinyCheckpoints
from tests.models.forward import load
from tests.models.gguf_files import write_gguf
from tests.tokenizers_tiny import save_tiny_tokenizer


@pytest.mark.parametrize("family", CONFIGS)
def test_it_agrees_with_a_loaded_engine(motet: RunCommand, tiny_checkpoints: TinyCheckpoints, family: str) -> None:
    folder, model = tiny_checkpoints(family)
    options = {"max_model_len": 128, "kv_cache_memory_bytes": 1_000_000, "max_num_seqs": 2, "block_size": 4}
    words = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), str(value))]
    done = motet("inspect", "--model", str(folder), *words, "--json")
    assert done.status == 0, done.err
    report = json.loads(done.out)
    engine = Engine(EngineArgs(model=str(folder), threads=1, **options).resolve())  # type: ignore[arg-type]
    assert [group["blocks"] + 1 for group in report["state"]["groups"]] == list(engine.capacity.num_blocks)
    engine.close()
    assert report["weights"]["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert report["weights"]["bytes"] == 4 * report["weights"]["parameters"]
    assert report["model"]["architecture"] == type(model).__name__
    assert report["model"]["num_layers"] == model.config.num_hidden_layers
    assert report["text"]["chat_template"] is True


@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
def test_quantised_files_are_as_large_as_they_are(motet: RunCommand, llama: Path, tmp_path: Path, kind: str) -> None:
    path = write_gguf(llama, "Llama", tmp_path / "model.gguf", kind)
    words = ["inspect", "--model", str(path), "--skip-tokenizer-init", "--dtype", "bfloat16", "--json"]
    weights = json.loads(motet(*words).out)["weights"]
    assert weights["bytes"] == weights["file_bytes"] == load(path).num_weight_bytes
    assert weights["file_types"] == {kind: 16, "F32": 5}
    done = motet(*words, "--quantization", "int8")
    if kind == "Q8_0":
        assert done.status == 1
        assert "already quantised (16 Q8_0, 5 F32)" in done.err
    else:
        assert json.loads(done.out)["weights"]["bytes"] == load(path, quantization="int8").num_weight_bytes


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("family", ["Llama", "GPT2", "Mixtral"])
def test_checkpoints_to_be_quantised_at_load(
    motet: RunCommand, tiny_checkpoints: TinyCheckpoints, family: str, quantization: str
) -> None:
    folder = tiny_checkpoints(family)[0]
    report = json.loads(motet("inspect", "--model", str(folder), "--quantization", quantization, "--json").out)
    assert report["weights"]["quantization"] == quantization
    assert report["weights"]["bytes"] == load(folder, quantization=quantization).num_weight_bytes


def test_table(motet: RunCommand, llama: Path) -> None:
    done = motet("inspect", "--model", str(llama), "--dtype", "bfloat16")
    for words in ("LlamaForCausalLM", "bfloat16", "21 F32", "group full", "chat template"):
        assert words in done.out


def test_weights_that_do_not_belong_to_the_config_are_refused(motet: RunCommand, tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    save_tiny_tokenizer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    done = motet("inspect", "--model", str(tmp_path))
    assert done.status == 1
    assert "model.layers.2" in done.err
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    done = motet("inspect", "--model", str(tmp_path))
    assert done.status == 1
    assert "model.layers.1" in done.err
