"""Speculation changes how many steps a request takes, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from motet import LLM
from motet.core.config import EngineArgs
from motet.core.errors import ConfigError, UnsupportedError
from motet.core.params import SamplingParams
from motet.engine.engine import Engine
from motet.spec.drafter import Verified
from tests.checkpoints import save_model
from tests.engine.driver import answer_bits, answers, generate, greedy, make_engine, only, random_prompts, run, stream
from tests.engine.test_exactness import LENGTHS, MIXED

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": False}
LOOP = [3, 1, 4, 1, 5, 9, 2, 6] * 4


class ScriptedDrafter:
    """Proposes the true next tokens, each with some probability wrong. `truth`: per prompt, what follows."""

    def __init__(self, engine: Engine, truth: Sequence[tuple[list[int], list[int]]], rate: float, length: int) -> None:
        self.batch, self.truth, self.rate, self.length = engine.core.runner.head.batch, truth, rate, length

    def propose(self, step: Any, out: Any, verified: Sequence[Verified], history: Any) -> list[tuple[int, ...]]:
        return [
            self._guess(request, history.token_ids[request.row, : request.num_tokens].tolist()) for request in verified
        ]

    def _guess(self, request: Verified, known: list[int]) -> tuple[int, ...]:
        whole = next(prompt + answer for prompt, answer in self.truth if (prompt + answer)[: len(known)] == known)
        following = enumerate(whole[len(known) : len(known) + self.length], len(known))
        return tuple(token if position * 0.37 % 1 < self.rate else (token + 1) % 512 for position, token in following)

    def clear(self, row: int) -> None:
        pass


def scripted(folder: Path, truth: Any, rate: float, **options: Any) -> Engine:
    engine = make_engine(folder, speculative_config=NGRAM, **options)
    head: Any = engine.core.runner.head
    head.drafter = ScriptedDrafter(engine, truth, rate, 4)
    return engine


@pytest.fixture(scope="module")
def folder(tiny_checkpoints: Any) -> Path:
    return tiny_checkpoints("Llama")[0]


PROMPTS = random_prompts(LENGTHS)
PARAMS = [one.clone(logprobs=2) for one in MIXED]


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[Any]:
    return generate(make_engine(folder), PROMPTS, PARAMS)


OPTIONS: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunked": {"max_num_batched_tokens": 7},
    "one at a time": {"max_num_batched_tokens": 1},
    "preempted": {"num_blocks_override": 25, "max_model_len": 80},
    "eager": {"enforce_eager": True},
}


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("options", OPTIONS)
def test_tokens_and_logprobs_are_those_without(folder: Path, plain: list[Any], rate: float, options: str) -> None:
    truth = list(zip(PROMPTS, answers(plain), strict=True))
    engine = scripted(folder, truth, rate, **OPTIONS[options])
    found = generate(engine, PROMPTS, PARAMS)
    assert [answer_bits(output) for output in found] == [answer_bits(output) for output in plain]
    stats = engine.core.scheduler.stats
    if options == "preempted":
        assert stats.num_preemptions > 0
    if options != "one at a time":
        assert stats.num_draft_tokens > 0
        share = stats.num_accepted_tokens / stats.num_draft_tokens
        assert share == 0 if rate == 0 else share > 0.2 if rate == 0.5 else share > 0.9


@pytest.mark.parametrize("family", ["Llama", "Gemma3", "GPT2", "Qwen3Moe"])
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_every_method_leaves_the_answers_as_they_are(tiny_checkpoints: Any, family: str, method: str) -> None:
    """The draft is the model itself, so that greedy drafts are always right, and drawn ones by the common noise."""
    folder = tiny_checkpoints(family)[0]
    config = {**NGRAM, "method": method, **({"model": str(folder)} if method == "draft_model" else {})}
    prompts = [*PROMPTS[1:4], LOOP]
    params = [*PARAMS[:3], greedy(max_tokens=20)]
    expected = generate(make_engine(folder), prompts, params)
    engine = make_engine(folder, speculative_config=config, max_num_batched_tokens=16)
    found = generate(engine, prompts, params)
    assert [answer_bits(output) for output in found] == [answer_bits(output) for output in expected]
    stats = engine.core.scheduler.stats
    assert stats.num_draft_tokens > 0
    if method == "draft_model":
        assert stats.num_accepted_tokens == stats.num_draft_tokens
    again = generate(engine, prompts, params)  # with what is in the prefix cache
    assert [answer_bits(output)[:2] for output in again] == [answer_bits(output)[:2] for output in expected]


@pytest.fixture(scope="module")
def medusa(tiny_checkpoints: Any, tmp_path_factory: pytest.TempPathFactory, plain: list[Any]) -> Path:
    """Two heads for the tiny Llama, fitted to answers that it gives here."""
    folder, model = tiny_checkpoints("Llama")
    greedy_answers = answers(generate(make_engine(folder), PROMPTS, greedy(max_tokens=24)))
    states, labels = [], []
    for prompt, answer in zip(PROMPTS, greedy_answers, strict=True):
        ids = torch.tensor([prompt + answer])
        with torch.no_grad():
            hidden = model(ids, output_hidden_states=True).hidden_states[-1][0]
        states.append(hidden[len(prompt) - 1 : -3])
        labels.append(torch.stack([ids[0, len(prompt) + 1 : -1], ids[0, len(prompt) + 2 :]], dim=1)[: len(states[-1])])
    x, y = torch.cat(states), torch.cat(labels)
    weights = {f"blocks.{i}.layers.0.weight": torch.zeros(64, 64, requires_grad=True) for i in range(2)}
    weights |= {f"lm_heads.{i}.weight": torch.zeros(512, 64, requires_grad=True) for i in range(2)}
    optimizer = torch.optim.Adam(weights.values(), lr=0.02)
    for _ in range(200):
        loss = torch.zeros(())
        for i in range(2):
            block = x + torch.nn.functional.silu(x @ weights[f"blocks.{i}.layers.0.weight"].T)
            loss = loss + torch.nn.functional.cross_entropy(block @ weights[f"lm_heads.{i}.weight"].T, y[:, i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    target = tmp_path_factory.mktemp("medusa")
    save_file({name: weight.detach() for name, weight in weights.items()}, target / "model.safetensors")
    config = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": 64, "vocab_size": 512}
    (target / "config.json").write_text(json.dumps({**config, "num_heads": 2, "num_hidden_layers": 1}))
    return target


def test_medusa_heads_guess_well_and_change_nothing(folder: Path, plain: list[Any], medusa: Path) -> None:
    config = {"method": "medusa", "model": str(medusa), "num_speculative_tokens": 2, "adaptive": False}
    engine = make_engine(folder, speculative_config=config)
    found = generate(engine, PROMPTS, PARAMS)
    assert [answer_bits(output) for output in found] == [answer_bits(output) for output in plain]
    before = engine.core.scheduler.stats
    expected = answers(generate(make_engine(folder), PROMPTS, greedy(max_tokens=24)))
    assert answers(generate(engine, PROMPTS, greedy(max_tokens=24))) == expected
    after = engine.core.scheduler.stats
    num_accepted = after.num_accepted_tokens - before.num_accepted_tokens
    assert num_accepted > 0.3 * (after.num_draft_tokens - before.num_draft_tokens)


def test_a_model_that_does_not_fit_the_method_is_refused(folder: Path, medusa: Path) -> None:
    for method, model, name in (("medusa", folder, "LlamaForCausalLM"), ("draft_model", medusa, "MedusaModel")):
        with pytest.raises(UnsupportedError, match=name):
            make_engine(folder, speculative_config={"method": method, "model": str(model), "num_speculative_tokens": 2})


def test_another_models_drafts_are_only_guesses(tiny_checkpoints: Any, folder: Path, plain: list[Any]) -> None:
    other = tiny_checkpoints("Qwen2")[0]
    config = {"method": "draft_model", "model": str(other), "num_speculative_tokens": 3}
    engine = make_engine(folder, speculative_config=config, num_blocks_override=25, max_model_len=80)
    found = generate(engine, PROMPTS, PARAMS)
    assert [answer_bits(output) for output in found] == [answer_bits(output) for output in plain]


def test_the_context_and_max_tokens_are_never_exceeded(folder: Path) -> None:
    (prompt,) = random_prompts((50,))
    (expected,) = answers(generate(make_engine(folder, max_model_len=64), [prompt], greedy(max_tokens=100)))
    assert len(expected) == 14
    for max_tokens in (100, 1, 3, 13):
        engine = scripted(folder, [(prompt, expected + [1] * 9)], 1.0, max_model_len=64)
        output = only(generate(engine, [prompt], greedy(max_tokens=max_tokens))[0])
        assert output.token_ids == expected[:max_tokens]
        assert output.finish_reason == "length"


def test_nothing_comes_after_a_stop_token_among_the_drafts(folder: Path) -> None:
    (prompt,) = random_prompts((9,))
    params = greedy(max_tokens=20, logprobs=1)
    (expected,) = answers(generate(make_engine(folder), [prompt], params))
    stop = next(token for index, token in enumerate(expected) if index > 2 and token not in expected[:index])
    engine = scripted(folder, [(prompt, expected)], 1.0)
    outputs = stream(engine, prompt, params.clone(stop_token_ids=[stop]))
    last = only(outputs[-1])
    assert last.token_ids == expected[: expected.index(stop) + 1]
    assert last.logprobs is not None
    assert len(last.logprobs) == len(last.token_ids)
    assert (last.finish_reason, last.stop_reason) == ("stop", stop)
    assert len(outputs) < len(last.token_ids)  # in fewer steps than tokens


def test_aborted_requests_give_their_drafts_up(folder: Path) -> None:
    engine = make_engine(folder, speculative_config=NGRAM)
    keys = [engine.add(engine.parse(LOOP, greedy(max_tokens=40)), greedy(max_tokens=40)) for _ in range(3)]
    for _ in range(6):
        engine.step()
        engine.check()
    engine.abort(keys[:2])
    assert only(run(engine)[keys[2]]).finish_reason == "length"


def test_acceptance_is_counted_for_each_request(folder: Path) -> None:
    (prompt,) = random_prompts((9,))
    (expected,) = answers(generate(make_engine(folder), [prompt], greedy()))
    engine = scripted(folder, [(prompt, expected)], 1.0)
    metrics = generate(engine, [prompt], greedy())[0].metrics
    assert metrics is not None
    assert metrics.num_accepted_tokens == metrics.num_draft_tokens > 0
    assert engine.core.scheduler.stats.num_accepted_tokens == metrics.num_accepted_tokens


def test_rejection_leaves_greedy_answers_as_they_are(folder: Path) -> None:
    prompts = [*PROMPTS, LOOP]
    expected = answers(generate(make_engine(folder), prompts, greedy()))
    engine = make_engine(folder, speculative_config={**NGRAM, "acceptance": "rejection"})
    assert answers(generate(engine, prompts, greedy())) == expected
    drawn = generate(engine, prompts, SamplingParams(temperature=1.0, seed=4, max_tokens=12, ignore_eos=True))
    assert [len(tokens) for tokens in answers(drawn)] == [12] * len(prompts)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "ngram"}, "missing required field `num_speculative_tokens`"),
        ({"method": "magic", "num_speculative_tokens": 3}, "method must be"),
        ({"num_speculative_tokens": 3, "k": 3}, "contains unknown field `k`"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be from 1 to 64"),
        ({"num_speculative_tokens": 3, "method": "draft_model"}, "model must be"),
        ({"num_speculative_tokens": 3, "prompt_lookup_min": 5}, "prompt_lookup_min"),
    ],
)
def test_wrong_configurations_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^speculative_config: (Object.*)?{message}"):
        EngineArgs.from_options({"model": "x", "speculative_config": config}).resolve()


def test_a_draft_model_with_other_tokens_is_refused(folder: Path, tmp_path: Path) -> None:
    save_model(tmp_path, "Llama", vocab_size=300)
    with pytest.raises(ConfigError, match="300 tokens"):
        make_engine(folder, speculative_config={"model": str(tmp_path), "num_speculative_tokens": 2})


def test_the_public_option(folder: Path) -> None:
    llm = LLM(model=str(folder), dtype="float32", skip_tokenizer_init=True, speculative_config=NGRAM, max_model_len=96)
    (output,) = llm.generate([{"prompt_token_ids": LOOP}], greedy(max_tokens=30), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 30
