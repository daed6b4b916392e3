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
