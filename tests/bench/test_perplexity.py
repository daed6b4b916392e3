"""The scripts that tell what quantised weights cost: the text is there, and they do what they say."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from motet import LLM
from motet.models.gguf import GGUFFile
from tests.conftest import TinyCheckpoints
from tests.models.gguf_files import write_gguf

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import make_gguf
import perplexity


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1"])
def test_files_hold_what_a_converter_would_write(
    kind: str, tiny_checkpoints: TinyCheckpoints, tmp_path: Path, monkeypatch: Any
) -> None:
    folder = tiny_checkpoints("Llama")[0]
    like = write_gguf(folder, "Llama", tmp_path / "like.gguf", "F16")
    expected = GGUFFile(write_gguf(folder, "Llama", tmp_path / "expected.gguf", kind))
    monkeypatch.setattr(sys, "argv", ["make_gguf.py", str(folder), str(tmp_path), "--like", str(like), "--kinds", kind])
    make_gguf.main()
    written = GGUFFile(tmp_path / f"Llama.{kind}.gguf")
    assert {**written.metadata, "general.file_type": None} == {**expected.metadata, "general.file_type": None}
    assert {name: info.type for name, info in written.tensors.items()} == {
        name: info.type for name, info in expected.tensors.items()
    }
    assert all(torch.equal(written.raw(name), expected.raw(name)) for name in written.tensors)


def test_perplexity_is_that_of_the_model(tiny_checkpoints: TinyCheckpoints) -> None:
    folder, oracle = tiny_checkpoints("Llama")
    text = "A drawer of buttons, and a chair that wobbles. " * 4
    llm = LLM(model=str(folder), dtype="float32", max_num_batched_tokens=40, threads=1)
    token_ids = llm.get_tokenizer().encode(text)
    window = len(token_ids) // 2 + 1
    value, count = perplexity.perplexity(llm, text, window)
    losses = []
    for part in (token_ids[:window], token_ids[window:]):
        with torch.inference_mode():
            logits = oracle(torch.tensor([part])).logits[0, :-1]
        losses += torch.nn.functional.cross_entropy(logits, torch.tensor(part[1:]), reduction="none").tolist()
    assert count == len(losses) == len(token_ids) - 2
    assert value == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)


def test_table(
    tiny_checkpoints: TinyCheckpoints, monkeypatch: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tiny_checkpoints("Llama")[0]
    (tmp_path / "text.txt").write_text("Old glue lets go when it is warm. " * 3)
    words = ["perplexity.py", str(folder), "--text", str(tmp_path / "text.txt"), "--window", "50"]
    monkeypatch.setattr(sys, "argv", words)
    perplexity.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["weights", "---", "bf16", "int8", "int4"]
    assert lines[2].endswith("| +0.00% |")


def test_the_text_is_long_enough_to_mean_something() -> None:
    assert 6000 < len(perplexity.TEXT.read_text(encoding="utf-8")) < 10_000
