"""Drives an Engine step by step, checking every invariant on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from motet.core.outputs import CompletionOutput, RequestOutput
from motet.core.params import RequestOutputKind, SamplingParams
from motet.engine.engine import Engine
from motet.runner.executor import EagerExecutor
from motet.tensors.forward import ForwardBatch
from motet.tensors.states import StateStore

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}


def greedy(**changes: Any) -> SamplingParams:
    return SamplingParams(**{**GREEDY, **changes})


def make_engine(folder: Path | str, **options: Any) -> Engine:
    """A float32 engine on a tiny checkpoint: blocks of 4, context of 128, room for 16 requests."""
    defaults = {
        "dtype": "float32",
        "block_size": 4,
        "max_model_len": 128,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
        "kv_cache_memory_bytes": 1 << 24,
        "skip_tokenizer_init": True,
        "threads": 1,  # tiny products: a second thread only waits
    }
    return Engine.from_options(model=str(folder), **{**defaults, **options})


def run(engine: Engine, limit: int = 5000) -> dict[str, RequestOutput]:
    """Step until nothing is left; the last output of each request by key."""
    last: dict[str, RequestOutput] = {}
    for _ in range(limit):
        if not engine.has_work:
            assert_idle(engine)
            return last
        last.update(engine.step())
        engine.check()
    raise AssertionError(f"not finished after {limit} steps")


def assert_idle(engine: Engine) -> None:
    """Nothing runs, waits or holds a block."""
    stats = engine.core.scheduler.stats
    assert (stats.num_running, stats.num_waiting, engine.outputs.num_open) == (0, 0, 0)
    assert stats.num_free_blocks == tuple(count - 1 for count in engine.capacity.num_blocks)


def generate(
    engine: Engine, prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams]
) -> list[RequestOutput]:
    """Answers to all prompts, run together."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    final = [one.clone(output_kind=RequestOutputKind.FINAL_ONLY) for one in each]
    keys = [engine.add(engine.parse(p, one), one) for p, one in zip(prompts, final, strict=True)]
    done = run(engine)
    return [done[key] for key in keys]


def answers(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def answer_bits(output: RequestOutput) -> Any:
    """Tokens, and the value of every reported logprob, of the prompt too."""
    answer = only(output)
    return answer.token_ids, _logprob_bits(answer.logprobs), _logprob_bits(output.prompt_logprobs)


def _logprob_bits(steps: Any) -> Any:
    return steps and [step and [(token_id, entry.logprob) for token_id, entry in step.items()] for step in steps]


def alone(engine: Engine, prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams]) -> list[list[int]]:
    """Each prompt by itself, on a cold cache."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    found = []
    for prompt, one in zip(prompts, each, strict=True):
        assert engine.reset_prefix_cache()
        found += answers(generate(engine, [prompt], one))
    return found


def random_prompts(lengths: Sequence[int], vocab_size: int = 512, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def oracle_greedy(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What transformers generates."""
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, len(prompt) :].tolist()


def only(output: RequestOutput) -> CompletionOutput:
    (answer,) = output.outputs
    return answer


def stream(engine: Engine, prompt: Any, params: SamplingParams) -> list[RequestOutput]:
    """Every output of one request, in the order of their coming."""
    key = engine.add(engine.parse(prompt, params), params)
    found = []
    while engine.has_work:
        found += [output for of, output in engine.step() if of == key]
        engine.check()
    assert_idle(engine)
    return found


class Scripted:
    """Stands in for a model: the tokens after a prompt of `prompt_len` tokens are `token_ids`, whatever came before.

    The others follow in the order of their ids; the caches stay empty.
    """

    ignored_tensors = ()

    def __init__(self, prompt_len: int, token_ids: Sequence[int], vocab_size: int = 512) -> None:
        self.first, self.token_ids, self.vocab_size = prompt_len - 1, list(token_ids), vocab_size

    def forward(self, batch: ForwardBatch, states: StateStore) -> Tensor:
        return batch.positions.unsqueeze(1)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        out = torch.arange(0, -self.vocab_size, -1, dtype=torch.float32).repeat(len(rows), 1)
        for row, index in zip(out, (hidden[rows, 0] - self.first).tolist()):
            row[self.token_ids[index] if 0 <= index < len(self.token_ids) else 0] = 10.0
        return out


@contextmanager
def model_of(engine: Engine, model: Any) -> Iterator[None]:
    """The engine with another model in it."""
    runner: Any = engine.core.runner
    own, executor = runner.head.model, runner.executor
    runner.head.model, runner.executor = model, EagerExecutor(model, executor.states)
    try:
        yield
    finally:
        runner.head.model, runner.executor = own, executor
        assert engine.reset_prefix_cache()
