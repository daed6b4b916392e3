"""The real models that come as PyPI packages, against transformers' reading of the same files."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch

from motet.models.gguf import GGUFFile
from motet.models.registry import PACKAGED, packaged_model
from motet.ops.cpu.backend import CpuOps, is_available
from tests.models.forward import load, run_logits
from tests.models.gguf_files import add_entry
from tests.models.gguf_oracle import load_with_transformers

pytestmark = pytest.mark.weights
PROMPTS = {
    "smollm2": [504, 3575, 282, 4649, 314],  # "The capital of France is"
    "gemma3-270m": [2, 818, 5279, 529, 7001, 563],
}
NUM_NEW = 32


def without_tokenizer(file: GGUFFile, path: Path) -> Path:
    """A copy without the vocabulary, whose strings transformers would read for a minute."""
    prefix = file.metadata["general.architecture"]
    writer = gguf.GGUFWriter(path, prefix)
    for key, value in file.metadata.items():
        if key.startswith(f"{prefix}."):
            add_entry(writer, key, value)
    if f"{prefix}.vocab_size" not in file.metadata:
        add_entry(writer, f"{prefix}.vocab_size", file.tensors["token_embd.weight"].shape[0])
    for name, info in file.tensors.items():
        rows = file.raw(name).numpy()
        writer.add_tensor(name, rows.reshape(*info.shape[:-1], -1), raw_dtype=info.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("alias", PACKAGED)
def test_greedy_tokens_and_logits_equal_transformers(alias: str, tmp_path: Path) -> None:
    path = packaged_model(alias)
    oracle = load_with_transformers(without_tokenizer(GGUFFile(path), tmp_path / "model.gguf"))
    oracle.generation_config.eos_token_id = None
    prompt = torch.tensor([PROMPTS[alias]])
    with torch.inference_mode():
        answer = oracle.generate(prompt, max_new_tokens=NUM_NEW, do_sample=False)[0]
        expected = oracle(answer.unsqueeze(0)).logits[0]
    actual = run_logits(load(path, dequantized=True), answer.tolist(), chunk=7)
    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=0)
    # Each next token is the best one: what greedy generation would have given.
    assert actual[len(PROMPTS[alias]) - 1 : -1].argmax(-1).tolist() == answer.tolist()[len(PROMPTS[alias]) :]
    assert len(answer) == len(PROMPTS[alias]) + NUM_NEW
    # From their own bits, with quantised activations: nearly the same distribution (Kullback-Leibler, in nats).
    native = run_logits(load(path, ops=CpuOps() if is_available() else None), answer.tolist(), chunk=7)
    p, q = expected.double().log_softmax(-1), native.double().log_softmax(-1)
    assert (p.exp() * (p - q)).sum(-1).mean() < 0.01


def test_smollm2_knows_its_capitals() -> None:
    loaded = load("smollm2", dtype="bfloat16")
    best = run_logits(loaded, PROMPTS["smollm2"], chunk=5)[-1].argmax().item()
    assert GGUFFile(packaged_model("smollm2")).metadata["tokenizer.ggml.tokens"][best] == "ĠParis"
