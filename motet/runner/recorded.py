"""Recorded execution: the model's forward becomes one program, which every step replays (motet/ops/cpu/program.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from motet.attention.cpu import CpuPagedAttention
from motet.core.state import Capacity, StateGroup
from motet.models.registry import Model
from motet.ops.cpu.program import Program, Recording, recording
from motet.ops.cpu.target import CollectingSink
from motet.runner.executor import EagerExecutor
from motet.tensors.forward import AdapterRows, ForwardBatch, ForwardOutput
from motet.tensors.states import States


class RecordedExecutor:
    """Records the model once, then runs every step in one call, without Python and without its lock."""

    def __init__(
        self,
        model: Model,
        states: States,
        attention: CpuPagedAttention,
        capacity: Capacity,
        groups: Sequence[StateGroup],
    ) -> None:
        """Raises RecordingError for a model that calls anything but ops."""
        self.attention = attention
        self.states = states
        self.num_slots = [num_blocks * capacity.block_size for num_blocks in capacity.num_blocks]
        self._eager = EagerExecutor(model, states)
        names = ["number of tokens", "number of sampled tokens", "number of requests", "number of adapted tokens"]
        names += [f"width of block table {index}" for index in range(len(groups))]
        with torch.inference_mode(), recording(attention.target, names) as tape:
            out = self._eager.run(self._symbolic_batch(tape, groups, capacity.block_size))
        self.program: Program = tape.finish([out.hidden, out.logits])

    def _symbolic_batch(self, tape: Recording, groups: Sequence[StateGroup], block_size: int) -> ForwardBatch:
        tokens, logit_rows, requests, adapted, *columns = tape.counts
        return ForwardBatch(
            token_ids=tape.input(tokens, dtype=torch.int64),
            positions=tape.input(tokens, dtype=torch.int64),
            logit_rows=tape.input(logit_rows, dtype=torch.int64),
            adapters=AdapterRows(tape.input(adapted, dtype=torch.int64), tape.input(adapted, dtype=torch.int32)),
            attention=tuple(
                self.attention.record_plan(tape, tokens, requests, columns[index], block_size, group.window)
                for index, group in enumerate(groups)
            ),
        )

    def bindings(self, batch: ForwardBatch) -> tuple[list[int], list[int]]:
        """The counts and the addresses of the inputs of a step."""
        adapters = batch.adapters
        counts = [batch.num_tokens, len(batch.logit_rows), batch.attention[0].rows.num_rows, len(adapters.tokens)]
        tensors = (batch.token_ids, batch.positions, batch.logit_rows, adapters.tokens, adapters.slots)
        inputs = [tensor.data_ptr() for tensor in tensors]
        for plan, num_slots in zip(batch.attention, self.num_slots, strict=True):
            if plan.rows.num_blocks * plan.rows.block_size > num_slots:
                raise ValueError(f"the block table names {plan.rows.num_blocks} blocks, more than the caches have")
            counts.append(plan.rows.table_stride)
            inputs += self.attention.step_inputs(plan)
        return counts, inputs

    def run(self, batch: ForwardBatch) -> ForwardOutput:
        if batch.num_tokens == 0:
            return self._eager.run(batch)
        hidden, logits = self.program.replay(*self.bindings(batch))
        return ForwardOutput(hidden, logits)


class CheckedExecutor:
    """Runs every step three times and compares: eagerly, recorded with poisoned memory, recorded with all buffers kept.

    For tests and for finding the op at fault. K and V are written thrice, with the same values.
    """

    def __init__(self, recorded: RecordedExecutor, eager: EagerExecutor) -> None:
        self.recorded = recorded
        self.eager = eager
        self.states = eager.states

    def run(self, batch: ForwardBatch) -> ForwardOutput:
        """Raises AssertionError, which names the first node whose output differs."""
        if batch.num_tokens == 0:
            return self.eager.run(batch)
        program = self.recorded.program
        collector = CollectingSink()
        with self.recorded.attention.target.redirected(collector):
            expected = self.eager.run(batch)
        counts, inputs = self.recorded.bindings(batch)
        program.replay(counts, inputs, apart=True)
        assert len(collector.made) == len(program.buffers), "eager and recorded runs differ in the number of op results"
        for buffer, tensor in zip(program.buffers, collector.made, strict=True):
            if not program.uses(buffer):
                continue
            found = program.read(buffer, counts, apart=True)
            assert equal_bits(found, tensor), f"{program.first_node(buffer)} differs from its eager run"
        hidden, logits = program.replay(counts, inputs, poisons=True)
        assert equal_bits(hidden, expected.hidden), "hidden states depend on memory that was dead"
        assert equal_bits(logits, expected.logits), "logits depend on memory that was dead"
        return expected


def equal_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.view(torch.uint8), other.view(torch.uint8))
