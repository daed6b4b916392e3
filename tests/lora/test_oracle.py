"""Rows of a mixed batch against PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from motet.core.params import SamplingParams
from tests.checkpoints import CONFIGS, make_model
from tests.engine.driver import only, oracle_greedy, random_prompts
from tests.lora.adapters import generate, linear_shapes, lora_engine, request, write_adapter

peft = pytest.importorskip("peft")

GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=1)


def with_peft(family: str, adapter: Path | None) -> Any:
    model = make_model(family)
    return model if adapter is None else peft.PeftModel.from_pretrained(model, str(adapter)).eval()


def oracle_logprobs(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        scores = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return scores.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_a_mixed_batch_equals_peft_on_each_row(family: str, tiny_checkpoints: Any, tmp_path: Path) -> None:
    folder, model = tiny_checkpoints(family)
    # PEFT takes names of feed-forward layers for experts, too, where a model has those.
    shapes = {name: shape for name, shape in linear_shapes(model).items() if "Moe" not in family or "attn" in name}
    last = sorted(shapes)[-1]
    kind = last.rsplit(".", 1)[-1]
    few = {name: shape for name, shape in shapes.items() if name.endswith(kind)}
    own = {"fan_in_fan_out": family == "GPT2"}
    adapters = [
        None,
        write_adapter(tmp_path / "a", shapes, 4, 1, **own),
        write_adapter(tmp_path / "b", shapes, 9, 2, use_rslora=True, alpha_pattern={last: 5}, **own),
        write_adapter(tmp_path / "c", few, 16, 3, rank_pattern={last: 11}, target_modules=rf".*\.{kind}", **own),
    ]
    prompts = random_prompts((9, 17, 12, 5))
    requests = [None if path is None else request(path, index) for index, path in enumerate(adapters)]
    outputs = generate(lora_engine(folder), prompts, GREEDY, requests)
    answers = []
    for prompt, path, output in zip(prompts, adapters, outputs, strict=True):
        oracle, answer = with_peft(family, path), only(output)
        assert answer.token_ids == oracle_greedy(oracle, prompt, 10)
        found = torch.tensor(
            [step[token].logprob for step, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        )
        torch.testing.assert_close(found, oracle_logprobs(oracle, prompt, answer.token_ids), atol=2e-4, rtol=1e-4)
        answers.append(answer.token_ids)
        base = oracle_logprobs(make_model(family), prompt, answer.token_ids)
        assert path is None or (base - found).abs().max() > 1e-2  # the adapter matters
