"""Recorded execution: what may be recorded, where buffers lie, and that a replay is the eager run bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from motet.core.errors import EngineDeadError
from motet.ops import cpu
from motet.ops.cpu.program import Count, Program, RecordingError, recording
from motet.ops.reference.linear import random_linear
from tests.checkpoints import CONFIGS

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="only kernels are recorded")

if cpu.is_available():
    from motet.runner.executor import EagerExecutor
    from motet.runner.recorded import CheckedExecutor, RecordedExecutor
    from tests.engine.driver import generate, greedy, make_engine, random_prompts


def feed_forward(ops: cpu.CpuOps, layers: int) -> tuple[Callable[[Tensor], Tensor], int]:
    """A stack of blocks over rows of 40, and that width."""
    up, down = random_linear((1, 96, 40), torch.float32)[1], random_linear((1, 40, 48), torch.float32)[1]
    packed = ops.pack_linear(up), ops.pack_linear(down)

    def run(x: Tensor) -> Tensor:
        for _ in range(layers):
            x = ops.linear(ops.activation_mul(ops.linear(x, packed[0]), "silu"), packed[1], None, x)
        return x

    return run, 40


def record(layers: int) -> tuple[Program, Callable[[Tensor], Tensor], int]:
    ops = cpu.CpuOps()
    run, width = feed_forward(ops, layers)
    with recording(ops.target, ["number of rows"]) as tape:
        x = tape.input(tape.counts[0], width, dtype=torch.float32)
        out = run(x)
    return tape.finish([out]), run, width


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_one_program_serves_every_number_of_rows(threads: int) -> None:
    program, run, width = record(layers=3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for num_rows in (1, 7, 64, 2):
            x = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(num_rows))
            for poisons, apart in ((False, False), (True, False), (False, True)):
                (out,) = program.replay([num_rows], [x.data_ptr()], poisons, apart)
                assert torch.equal(out, run(x))
    finally:
        torch.set_num_threads(before)


def test_buffers_that_are_never_used_at_once_share_memory() -> None:
    """A block needs its input, both results between, and its output, whatever the number of blocks."""
    sizes = [record(layers)[0]._recorder.num_arena_bytes([10], False) for layers in (2, 8)]
    assert sizes[0] == sizes[1]
    apart = [record(layers)[0]._recorder.num_arena_bytes([10], True) for layers in (2, 8)]
    assert apart[1] == 4 * apart[0] > sizes[0]


def test_a_dead_buffer_is_poisoned() -> None:
    program, _, width = record(layers=2)
    x = torch.ones(3, width)
    (out,) = program.replay([3], [x.data_ptr()], poisons=True)
    assert out.isfinite().all()
    dead = program.read(program.buffers[0], [3], apart=False)
    assert dead.isnan().any()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x, ops: torch.relu(x), "torch's relu was called on a recorded buffer"),
        (lambda x, ops: torch.add(x, x), "torch's add was called"),
        (lambda x, ops: x.float(), "Tensor.float was used on a recorded buffer"),
        (lambda x, ops: range(x.shape[0]), "the number of rows of a step was read as a number"),
        (lambda x, ops: int(x.shape[0]), "the number of rows of a step was read as a number"),
        (lambda x, ops: len(x), "the number of rows of a step was read as a number"),
        (lambda x, ops: ops.add(torch.ones(1, 8), x), "x and y must be alike"),
    ],
)
def test_what_cannot_be_recorded_is_refused(use: Callable[[Any, cpu.CpuOps], Any], message: str) -> None:
    ops = cpu.CpuOps()
    with (
        pytest.raises((RecordingError, ValueError), match=message),
        recording(ops.target, ["number of rows"]) as tape,
    ):
        use(tape.input(tape.counts[0], 8, dtype=torch.float32), ops)
    assert ops.add(torch.ones(1, 8), torch.ones(1, 8)).sum() == 16  # runs eagerly again


def test_a_count_may_be_a_multiple() -> None:
    """Three rows for each token: the kernel runs over three times as many as the step has tokens."""
    ops = cpu.CpuOps()
    with recording(ops.target, ["number of tokens"]) as tape:
        x = tape.input(tape.counts[0], 3 * 8, dtype=torch.float32)
        out = ops.target.empty(x, 3 * 8, dtype=torch.float32)
        ops.target.calls.add(out.data_ptr(), x.data_ptr(), x.data_ptr(), ops.target.num_rows(x, times=3), 8, 0)
    program = tape.finish([out])
    for num_tokens in (1, 5):
        values = torch.randn(num_tokens, 24, generator=torch.Generator().manual_seed(0))
        (found,) = program.replay([num_tokens], [values.data_ptr()])
        assert torch.equal(found, 2 * values)


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_every_architecture_is_recorded(family: str, tiny_checkpoints: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_CHECK", "1")
    for options in ({}, {"dtype": "bfloat16", "quantization": "int8"}):
        engine = make_engine(tiny_checkpoints(family)[0], **options)
        assert type(engine.core.runner.executor) is CheckedExecutor  # type: ignore[attr-defined]
        outputs = generate(engine, random_prompts((5, 21)), greedy())
        assert all(output.outputs[0].token_ids for output in outputs)


def test_counts_have_no_truth() -> None:
    with pytest.raises(RecordingError, match="number of tokens"):
        bool(Count("number of tokens", 0))


def test_the_engine_records_unless_told_otherwise(tiny_checkpoints: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_checkpoints("Llama")[0]
    prompts = random_prompts((5, 30, 1))
    executors, answers = [], []
    for check, options in ((True, {}), (False, {}), (False, {"enforce_eager": True})):
        monkeypatch.setenv("MOTET_CHECK", "1")
        if not check:
            monkeypatch.delenv("MOTET_CHECK")
        engine = make_engine(folder, **options)
        executors.append(type(engine.core.runner.executor))  # type: ignore[attr-defined]
        answers.append([list(output.outputs[0].token_ids) for output in generate(engine, prompts, greedy())])
    assert executors == [CheckedExecutor, RecordedExecutor, EagerExecutor]
    assert answers[0] == answers[1] == answers[2]


def test_the_check_names_the_node_that_differs(tiny_checkpoints: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_CHECK", "1")
    engine = make_engine(tiny_checkpoints("Llama")[0])
    runner: Any = engine.core.runner
    executor = runner.executor
    mlp = executor.eager.model.layers[1].feed_forward
    mlp.act = "gelu_tanh"  # the program has silu
    with pytest.raises(EngineDeadError, match=r"activation \(node \d+\) differs from its eager run"):
        generate(engine, random_prompts((5,)), greedy())
