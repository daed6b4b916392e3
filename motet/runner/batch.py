"""The persistent batch: one permanent row per live request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from motet.attention.protocol import AttentionBackend
from motet.core.plan import NewRow, RowPlan, StepPlan
from motet.core.state import StateGroup
from motet.sampling.columns import SamplingColumns, TokenHistory
from motet.sampling.grammar.grammars import NO_GRAMMARS, Grammars
from motet.sampling.processors import LogitsProcessor
from motet.tensors.forward import NO_ADAPTERS, AdapterRows, ForwardBatch, IntArray, StepLayout, StepRows, last_of_each


class PersistentBatch:
    """Tokens, block tables, adapters and sampling columns of every live request, by row.

    Written by `apply` (what the plan says) and `commit` (what the head sampled), both on the runner thread: a token
    that step n samples is in place when step n + 1 gathers.
    """

    def __init__(
        self,
        max_rows: int,
        max_len: int,
        vocab_size: int,
        groups: tuple[StateGroup, ...],
        block_size: int,
        processors: Sequence[LogitsProcessor] = (),
        grammars: Grammars = NO_GRAMMARS,
    ) -> None:
        max_blocks = -(-max_len // block_size)
        self.groups, self.block_size, self.max_len = groups, block_size, max_len
        self.token_ids = np.zeros((max_rows, max_len), np.int32)
        self.prompt_len = np.zeros(max_rows, np.int32)
        self.num_tokens = np.zeros(max_rows, np.int32)
        self.adapter_slots = np.zeros(max_rows, np.int64)
        self.request_ids: list[str | None] = [None] * max_rows
        self.block_tables = [np.zeros((max_rows, max_blocks), np.int32) for _ in groups]
        self.num_blocks = np.zeros((len(groups), max_rows), np.int32)
        self.sampling = SamplingColumns(max_rows, vocab_size, processors, grammars)
        self.history = TokenHistory(self.token_ids, self.prompt_len)

    def apply(self, plan: StepPlan) -> None:
        for row in plan.frees:
            self.request_ids[row] = None
            self.sampling.clear(row)
        for new in plan.admits:
            self._admit(new)
        for row_plan in plan.rows:
            self._append_blocks(row_plan)
            if row_plan.drafts:  # behind the known tokens, as if they were sampled; `num_tokens` does not count them
                end = row_plan.start + row_plan.num_tokens
                self.token_ids[row_plan.row, end - len(row_plan.drafts) : end] = row_plan.drafts

    def _admit(self, new: NewRow) -> None:
        row, count = new.row, len(new.token_ids)
        self.request_ids[row] = new.request_id
        self.token_ids[row, :count] = new.token_ids
        self.num_tokens[row] = count
        self.prompt_len[row] = new.prompt_len
        self.adapter_slots[row] = new.adapter_slot
        self.num_blocks[:, row] = 0
        self.sampling.set(row, new.sampling)

    def _append_blocks(self, plan: RowPlan) -> None:
        for group, blocks in enumerate(plan.new_blocks):
            if blocks:
                first = self.num_blocks[group, plan.row]
                self.block_tables[group][plan.row, first : first + len(blocks)] = blocks
                self.num_blocks[group, plan.row] += len(blocks)

    def gather(self, plan: StepPlan, attention: AttentionBackend) -> ForwardBatch:
        """The step's tokens, request after request in the order of `plan.rows`."""
        fields = [(row.row, row.start, row.num_tokens, row.emits and 1 + len(row.drafts)) for row in plan.rows]
        rows, starts, counts, num_logits = columns = np.array(fields, np.int64).reshape(-1, 4).T.copy()
        ends = starts + counts
        self.sampling.expect(rows, ends - num_logits + 1, ends, num_logits, self.history)
        return self.gather_rows(columns, attention)

    def gather_rows(self, fields: IntArray, attention: AttentionBackend) -> ForwardBatch:
        """fields: int64 [4, R]: row, first position, number of tokens, and how many, the last of them, get logits."""
        rows, starts, counts, num_logits = fields
        layout = StepLayout.of(starts, counts)
        token_ids = self.token_ids[rows[layout.token_rows], layout.positions]
        num_blocks = -(-layout.end // self.block_size)
        slots = self.adapter_slots[rows]
        tables = [table[rows, :num_blocks] for table in self.block_tables]
        return ForwardBatch(
            token_ids=torch.from_numpy(token_ids.astype(np.int64)),
            positions=torch.from_numpy(layout.positions),
            logit_rows=torch.from_numpy(last_of_each(layout.firsts + counts, num_logits)),
            attention=tuple(
                attention.plan_step(StepRows(layout, table, self.block_size, group.window))
                for table, group in zip(tables, self.groups, strict=True)
            ),
            adapters=AdapterRows.of(slots[layout.token_rows]) if slots.any() else NO_ADAPTERS,
        )

    def commit(self, row: int, position: int, token_id: int) -> None:
        """`token_id` stands at `position` of the row from now on."""
        if position < self.max_len:
            self.token_ids[row, position] = token_id
            self.num_tokens[row] = position + 1

    def check(self, plan: StepPlan) -> None:
        """Assert that `plan`, just applied, and the rows agree."""
        for row in plan.rows:
            stop = row.start + row.num_tokens
            assert self.request_ids[row.row] == row.request_id, f"row {row.row} belongs to another request"
            assert stop <= self.num_tokens[row.row] + len(row.drafts), (
                f"row {row.row}: tokens up to {stop} are not known yet"
            )
            for group in range(len(self.groups)):
                held = self.num_blocks[group, row.row] * self.block_size
                assert held >= stop, f"row {row.row}: blocks for {held} tokens, {stop} are computed"
