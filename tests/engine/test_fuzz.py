"""Random crowds on random engines: every request's tokens and logprobs are the bits it gets alone.

Requests differ in prompts, penalties, seeds, grammars, adapters and stop strings; some are aborted. Engines differ in
how they draft, cut steps, and in how little memory they have.

A few examples of each kind run in the suite, the same every time. `make fuzz FUZZ_EXAMPLES=500` looks further.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from motet.core.lora import LoRARequest
from motet.core.outputs import RequestOutput
from motet.core.params import RequestOutputKind, SamplingParams
from motet.engine.engine import Engine
from motet.ops import cpu
from tests.checkpoints import CONFIGS
from tests.engine.driver import answer_bits, assert_idle, make_engine, random_prompts
from tests.lora.adapters import generate, linear_shapes, request, write_adapter

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the bits are the kernels' promise")

# What the promise holds for: how weights are kept, and how a forward pass is run. Name -> engine options.
SCHEMES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "float16", "quantization": "int4"},
}
NGRAM = {"method": "ngram", "prompt_lookup_min": 1}
DRAFTS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "ngram": {**NGRAM, "num_speculative_tokens": 3, "adaptive": False},
    "adaptive ngram": {**NGRAM, "num_speculative_tokens": 8},
    "draft model": {"method": "draft_model", "num_speculative_tokens": 2, "adaptive": False},
    "adaptive draft model": {"method": "draft_model", "num_speculative_tokens": 5},
}
EXECUTORS: dict[str, dict[str, Any]] = {"eager": {"enforce_eager": True}, "recorded": {}}

MAX_LEN = 64
ALL: dict[str, Any] = {"skip_tokenizer_init": False, "enable_lora": True, "max_loras": 2}
FUZZ = settings.get_profile("fuzz")
IS_FUZZ = settings.default == FUZZ
# Shrinking takes minutes: `make fuzz` does it.
BUDGET = (
    FUZZ
    if IS_FUZZ
    else settings(phases=[Phase.generate], max_examples=7, derandomize=True, deadline=None, database=None)
)
MAX_ROWS = 64 if IS_FUZZ else 8
STARTS = random_prompts((32, 32), seed=1)


@dataclass(frozen=True)
class Row:
    """One request: the first `start_len` tokens that others may share, some of its own, and what is done with it."""

    start: int
    start_len: int
    own_len: int
    seed: int
    sampling: tuple[tuple[str, Any], ...]
    adapter: int  # 0: none
    max_tokens: int
    num_steps_before: int  # that the engine goes on before it comes
    abort_after: int | None  # steps

    @property
    def prompt(self) -> list[int]:
        return STARTS[self.start][: self.start_len] + random_prompts((self.own_len,), seed=self.seed)[0]

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            **dict(self.sampling),
            seed=self.seed,
            max_tokens=self.max_tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


@dataclass(frozen=True)
class Scenario:
    family: str
    executor: str
    drafts: str
    rows: tuple[Row, ...]
    options: tuple[tuple[str, Any], ...]
    num_rounds: int  # a later one finds the earlier in the prefix cache


GRAMMARS: list[dict[str, Any]] = [
    {"json": {"type": "object", "properties": {"a": {"enum": [1, "é", None]}}, "required": ["a"]}},
    {"regex": "[a-d]{2,30}x"},
    {"choice": ["one", "another one"]},
]

SAMPLING = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.7, 1.0, 1.5]), "logprobs": st.sampled_from([0, 1, 4])},
    optional={
        "top_p": st.sampled_from([0.5, 0.9, 0.99]),
        "top_k": st.sampled_from([1, 5, 100]),
        "min_p": st.sampled_from([0.01, 0.2]),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "presence_penalty": st.sampled_from([-0.5, 0.7]),
        "frequency_penalty": st.sampled_from([-0.3, 0.4]),
        "prompt_logprobs": st.just(2),
        "min_tokens": st.just(1),
        "logit_bias": st.just({5: 4.0, 9: -100.0}),
        "structured_outputs": st.sampled_from(GRAMMARS),
        "stop": st.just(["e", "a;"]),
    },
).map(lambda values: tuple(values.items()))

ROWS = st.builds(
    Row,
    start=st.integers(0, len(STARTS) - 1),
    start_len=st.one_of(st.just(32), st.integers(0, 32)),
    own_len=st.integers(1, 18),
    seed=st.integers(0, 2**32),
    sampling=SAMPLING,
    adapter=st.sampled_from([0, 0, 1, 2, 3]),
    max_tokens=st.integers(1, 13),
    num_steps_before=st.sampled_from([0, 0, 0, 1, 3]),
    abort_after=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 8)),
)


@st.composite
def engine_options(draw: st.DrawFn) -> tuple[tuple[str, Any], ...]:
    block_size = draw(st.sampled_from([1, 3, 4, 16, 32]))
    spare = draw(st.sampled_from([None, 0, 0, 10, 50, 150]))  # tokens beyond one longest request; None: plenty
    options = {
        "block_size": block_size,
        "num_blocks_override": None if spare is None else 1 + -(-(MAX_LEN + spare) // block_size),
        "max_num_batched_tokens": draw(st.sampled_from([1, 5, 7, 16, 33, 64, 512])),
        "max_num_seqs": draw(st.sampled_from([2, 5, 16, 64])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, False])),
        "async_scheduling": draw(st.booleans()),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "threads": draw(st.sampled_from([1, 2])),
    }
    return tuple(options.items())


SCENARIOS = st.builds(
    Scenario,
    family=st.sampled_from(sorted(CONFIGS)),
    executor=st.sampled_from(sorted(EXECUTORS)),
    drafts=st.sampled_from(sorted(DRAFTS)),
    rows=st.lists(ROWS, min_size=2, max_size=MAX_ROWS).map(tuple),
    options=engine_options(),
    num_rounds=st.sampled_from([2, 1]),
)


class Alone:
    """What each request answers by itself, on an engine that does nothing else."""

    def __init__(self, folders: Any, root: Path) -> None:
        self.folder = cache(lambda family: Path(folders(family)[0]))
        self.shapes = cache(lambda family: linear_shapes(folders(family)[1]))
        self.root = root
        self._engine = cache(self._make)
        self._found: dict[str, Any] = {}

    def _make(self, family: str, scheme: str) -> Engine:
        options = {**ALL, "enable_prefix_caching": False, "max_model_len": MAX_LEN, **SCHEMES[scheme]}
        return make_engine(self.folder(family), **options)

    def adapter(self, family: str, index: int) -> LoRARequest | None:
        """Three for each family, of different ranks; of mixtures of experts over the attention alone."""
        folder = self.root / f"{family}-{index}"
        if index and not folder.exists():
            shapes = self.shapes(family)
            if family in ("Mixtral", "Qwen3Moe"):
                shapes = {name: shape for name, shape in shapes.items() if "att" in name}
            write_adapter(folder, shapes, 3 * index, index)
        return request(folder, index) if index else None

    def bits(self, family: str, scheme: str, row: Row) -> Any:
        key = repr((family, scheme, row))
        if key not in self._found:
            torch.set_num_threads(1)  # of the process: the engine of another example may have set it
            adapters = [self.adapter(family, row.adapter)]
            output = generate(self._engine(family, scheme), [row.prompt], row.params, adapters)[0]
            self._found[key] = answer_bits(output)
        return self._found[key]


@pytest.fixture(scope="module")
def alone(tiny_checkpoints: Any, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tiny_checkpoints, tmp_path_factory.mktemp("adapters"))


def answer(engine: Engine, rows: tuple[Row, ...], adapters: list[LoRARequest | None]) -> dict[int, RequestOutput]:
    """Run rows together as they come and go; the outputs of those that were not aborted, by index."""
    open_rows: dict[str, int] = {}
    ends: dict[int, list[str]] = {}
    done: dict[int, RequestOutput] = {}
    todo = list(enumerate(rows))
    step, next_arrival = 0, rows[0].num_steps_before
    while todo or engine.has_work:
        while todo and (next_arrival <= step or not engine.has_work):
            index, row = todo.pop(0)
            adapter = engine.adapter(adapters[index])
            key = engine.add(engine.parse(row.prompt, row.params), row.params, priority=index % 3, adapter=adapter)
            open_rows[key] = index
            if row.abort_after is not None:
                ends.setdefault(step + row.abort_after, []).append(key)
            next_arrival = step + (todo[0][1].num_steps_before if todo else 0)
        for key in ends.pop(step, []):
            if key in open_rows:
                engine.abort([key])
                del open_rows[key]
        for key, output in engine.step():
            if output.finished and key in open_rows:
                done[open_rows.pop(key)] = output
        engine.check()
        step += 1
    assert_idle(engine)
    assert not open_rows
    return done


@pytest.mark.parametrize("scheme", SCHEMES)
@BUDGET
@given(scenario=SCENARIOS)
def test_every_request_gets_the_bits_it_gets_alone(alone: Alone, scheme: str, scenario: Scenario) -> None:
    expected = [alone.bits(scenario.family, scheme, row) for row in scenario.rows]
    adapters = [alone.adapter(scenario.family, row.adapter) for row in scenario.rows]
    options = {**SCHEMES[scheme], **EXECUTORS[scenario.executor], **dict(scenario.options)}
    folder = alone.folder(scenario.family)
    drafts = DRAFTS[scenario.drafts]
    if drafts and drafts["method"] == "draft_model":  # the model itself, or another one
        drafts = drafts | {"model": str(folder if scenario.num_rounds == 1 else alone.folder("GPT2"))}
    engine = make_engine(folder, max_model_len=MAX_LEN, speculative_config=drafts, **ALL, **options)
    try:
        for _ in range(scenario.num_rounds):
            for index, output in answer(engine, scenario.rows, adapters).items():
                assert answer_bits(output) == expected[index], index
    finally:
        engine.close()
