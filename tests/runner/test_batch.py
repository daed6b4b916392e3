"""The persistent batch, driven by plans made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from motet.core.params import RowSampling
from motet.core.plan import NewRow, RowPlan, StepPlan
from motet.core.state import StateGroup
from motet.runner.batch import PersistentBatch
from motet.tensors.forward import ForwardBatch, StepRows

GROUPS = (StateGroup(None, ("a",), 1), StateGroup(8, ("b",), 1))
GREEDY = RowSampling(temperature=0.0)


@dataclass
class FakeAttention:
    """Remembers what it was asked to plan, per group."""

    asked: list[StepRows] = field(default_factory=list)

    def plan_step(self, rows: StepRows) -> int:
        self.asked.append(rows)
        return len(self.asked)

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("no forward here")


def make() -> PersistentBatch:
    return PersistentBatch(max_rows=3, max_len=12, vocab_size=50, groups=GROUPS, block_size=4)


def step(batch: PersistentBatch, plan: StepPlan) -> tuple[ForwardBatch, list[StepRows]]:
    attention = FakeAttention()
    batch.apply(plan)
    batch.check(plan)
    return batch.gather(plan, attention), attention.asked


def admit(row: int, token_ids: list[int], prompt_len: int | None = None) -> NewRow:
    return NewRow(row, f"r{row}", token_ids, prompt_len or len(token_ids), GREEDY)


def test_gather_follows_the_order_of_the_plan() -> None:
    batch = make()
    plan = StepPlan(
        0,
        admits=(admit(2, [5, 6, 7, 8, 9]), admit(0, [1, 2])),
        rows=(
            RowPlan(2, "r2", 0, 4, False, ((3,), (7,))),
            RowPlan(0, "r0", 0, 2, True, ((4,), (8,))),
        ),
    )
    forward, asked = step(batch, plan)
    assert forward.token_ids.tolist() == [5, 6, 7, 8, 1, 2]
    assert forward.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert forward.logit_rows.tolist() == [5]
    assert forward.attention == (1, 2)
    assert forward.num_tokens == 6
    assert [rows.window for rows in asked] == [None, 8]
    for rows, first in zip(asked, (3, 7), strict=True):
        assert (rows.layout.starts.tolist(), rows.layout.counts.tolist(), rows.block_size) == ([0, 0], [4, 2], 4)
        assert (rows.layout.firsts.tolist(), rows.layout.token_rows.tolist()) == ([0, 4], [0] * 4 + [1] * 2)
        assert rows.block_table[:, :1].tolist() == [[first], [first + 1]]


def test_chunks_append_blocks_and_a_sampled_token_is_there_for_the_next_step() -> None:
    batch = make()
    step(batch, StepPlan(0, admits=(admit(1, [5, 6, 7, 8, 9]),), rows=(RowPlan(1, "r1", 0, 3, False, ((3,), (7,))),)))
    forward, asked = step(batch, StepPlan(1, rows=(RowPlan(1, "r1", 3, 2, True, ((5,), (9,))),)))
    assert forward.token_ids.tolist() == [8, 9]
    assert forward.positions.tolist() == [3, 4]
    assert [rows.block_table[0, :2].tolist() for rows in asked] == [[3, 5], [7, 9]]
    batch.commit(1, 5, 42)
    forward, _ = step(batch, StepPlan(2, rows=(RowPlan(1, "r1", 5, 1, True, ((), ())),)))
    assert forward.token_ids.tolist() == [42]
    assert forward.logit_rows.tolist() == [0]


def test_a_row_is_taken_over_in_the_plan_that_frees_it() -> None:
    batch = make()
    step(batch, StepPlan(0, admits=(admit(0, [1] * 9),), rows=(RowPlan(0, "r0", 0, 9, True, ((1, 2, 3), (4, 5, 6))),)))
    new = NewRow(0, "other", [7, 8], 2, RowSampling(temperature=0.0, num_prompt_logprobs=3))
    plan = StepPlan(1, frees=(0,), admits=(new,), rows=(RowPlan(0, "other", 0, 2, True, ((9,), (10,))),))
    forward, asked = step(batch, plan)
    assert forward.token_ids.tolist() == [7, 8]
    assert [rows.block_table[0, :1].tolist() for rows in asked] == [[9], [10]]
    assert batch.sampling.num_prompt_logprobs(0) == 3
    batch.apply(StepPlan(2, frees=(0,)))
    assert batch.request_ids[0] is None


def test_a_resumed_request_brings_its_output() -> None:
    batch = make()
    plan = StepPlan(
        0, admits=(admit(0, [1, 2, 3, 4], prompt_len=2),), rows=(RowPlan(0, "r0", 0, 4, True, ((1,), (2,))),)
    )
    forward, _ = step(batch, plan)
    assert forward.token_ids.tolist() == [1, 2, 3, 4]
    assert (batch.prompt_len[0], batch.num_tokens[0]) == (2, 4)


def test_a_plan_without_rows_gathers_nothing() -> None:
    forward, asked = step(make(), StepPlan(0, frees=(1,)))
    assert forward.num_tokens == 0
    assert forward.logit_rows.tolist() == []
    assert [len(rows.layout.positions) for rows in asked] == [0, 0]


def test_a_token_beyond_the_context_is_dropped() -> None:
    batch = make()
    step(batch, StepPlan(0, admits=(admit(0, [1] * 12),), rows=(RowPlan(0, "r0", 0, 12, True, ((1, 2, 3),) * 2),)))
    batch.commit(0, 12, 9)
    assert batch.num_tokens[0] == 12
    assert 9 not in batch.token_ids


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (RowPlan(0, "r1", 0, 2, True, ((1,), (2,))), "another request"),
        (RowPlan(0, "r0", 0, 3, True, ((1,), (2,))), "not known yet"),
        (RowPlan(0, "r0", 0, 2, True, ((1,), ())), "blocks for 0 tokens"),
    ],
)
def test_check_finds_plans_that_do_not_fit(row: RowPlan, complaint: str) -> None:
    batch = make()
    plan = StepPlan(0, admits=(admit(0, [1, 2]),), rows=(row,))
    batch.apply(plan)
    with pytest.raises(AssertionError, match=complaint):
        batch.check(plan)
