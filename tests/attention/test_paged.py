"""Paged attention equals dense attention written out, for any mix of rows, chunks and block tables."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from motet.attention.paged import MAX_QUERIES, PagedAttention
from motet.tensors.forward import StepLayout, StepRows
from motet.tensors.states import PagedState

HEAD_SIZE = 8


@dataclass(frozen=True)
class Extras:
    window: int | None = None
    soft_cap: float | None = None
    has_alibi: bool = False
    has_sinks: bool = False


@dataclass(frozen=True)
class Case:
    """Rows (start, num_tokens) with their whole q, k, v [start + num_tokens, heads, HEAD_SIZE]."""

    rows: list[tuple[int, int]]
    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    slopes: Tensor | None
    sinks: Tensor | None
    extras: Extras

    @classmethod
    def make(cls, rows: list[tuple[int, int]], num_heads: int, num_kv_heads: int, extras: Extras, seed: int) -> Case:
        generator = torch.Generator().manual_seed(seed)

        def values(heads: int) -> list[Tensor]:
            return [torch.randn(start + count, heads, HEAD_SIZE, generator=generator) for start, count in rows]

        return cls(
            rows,
            values(num_heads),
            values(num_kv_heads),
            values(num_kv_heads),
            torch.rand(num_heads, generator=generator) if extras.has_alibi else None,
            torch.randn(num_heads, generator=generator) if extras.has_sinks else None,
            extras,
        )

    def dense(self, row: int) -> Tensor:
        """Attention of all the row's queries, one score at a time; [T, Hq * D] of its chunk."""
        q, k, v = self.q[row].double(), self.k[row].double(), self.v[row].double()
        group = q.shape[1] // k.shape[1]
        start, count = self.rows[row]
        out = torch.zeros(count, q.shape[1], HEAD_SIZE, dtype=torch.float64)
        for index in range(count):
            position = start + index
            first = 0 if self.extras.window is None else max(0, position - self.extras.window + 1)
            for head in range(q.shape[1]):
                keys = k[first : position + 1, head // group]
                scores = keys @ q[position, head] / math.sqrt(HEAD_SIZE)
                if self.extras.soft_cap is not None:
                    scores = torch.tanh(scores / self.extras.soft_cap) * self.extras.soft_cap
                if self.slopes is not None:
                    scores = scores - self.slopes[head].double() * torch.arange(position - first, -1, -1)
                weights = scores.exp()
                total = weights.sum() + (0 if self.sinks is None else self.sinks[head].double().exp())
                out[index, head] = (weights / total) @ v[first : position + 1, head // group]
        return out.view(count, -1)

    def paged(self, members: list[int], block_size: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """The same through PagedAttention, for some rows in one step, with blocks dealt at random."""
        chance = random.Random(seed)
        needed = [-(-sum(self.rows[row]) // block_size) for row in members]
        blocks = list(range(1, sum(needed) + 4))
        chance.shuffle(blocks)
        num_kv_heads = self.k[0].shape[1]
        # What nobody has written is NaN, except in the null block: reading it would show.
        caches = torch.full((2, (len(blocks) + 1) * block_size, num_kv_heads, HEAD_SIZE), math.nan, dtype=dtype)
        caches[:, :block_size] = 7.0
        table = torch.zeros(len(members), max(needed) + 1, dtype=torch.int32)
        for index, row in enumerate(members):
            start, _ = self.rows[row]
            window = self.extras.window
            first_seen = 0 if window is None else max(0, start - window + 1) // block_size
            for block in range(first_seen, needed[index]):
                table[index, block] = blocks.pop()
            for position in range(first_seen * block_size, start):
                slot = int(table[index, position // block_size]) * block_size + position % block_size
                caches[0, slot], caches[1, slot] = self.k[row][position].to(dtype), self.v[row][position].to(dtype)
        starts = [self.rows[row][0] for row in members]
        counts = [self.rows[row][1] for row in members]
        backend = PagedAttention()
        plan = backend.plan_step(StepRows(StepLayout.of(starts, counts), table.numpy(), block_size, self.extras.window))
        q, k, v = (
            torch.cat([values[row][self.rows[row][0] :] for row in members]) for values in (self.q, self.k, self.v)
        )
        out = backend.attend(
            q,
            k,
            v,
            PagedState(caches[0], caches[1], 0),
            plan,
            HEAD_SIZE**-0.5,
            self.extras.soft_cap,
            self.slopes,
            self.sinks,
        )
        return list(out.split(counts))


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


EXTRAS = [
    Extras(),
    Extras(window=1),
    Extras(window=5),
    Extras(soft_cap=2.0),
    Extras(has_alibi=True),
    Extras(has_sinks=True),
    Extras(window=7, soft_cap=3.0, has_alibi=True, has_sinks=True),
]
ROWS = st.lists(st.tuples(st.integers(0, 20), st.sampled_from([1, 1, 1, 2, 5, 13])), min_size=1, max_size=5)
HEADS = st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)])


@settings(max_examples=60, deadline=None)
@given(
    rows=ROWS,
    heads=HEADS,
    extras=st.sampled_from(EXTRAS),
    block_size=st.sampled_from([1, 3, 4, 16]),
    seed=st.integers(0, 99),
)
def test_mixed_rows_equal_dense_attention(
    rows: list[tuple[int, int]], heads: tuple[int, int], extras: Extras, block_size: int, seed: int
) -> None:
    case = Case.make(rows, *heads, extras, seed)
    for row, found in enumerate(case.paged(list(range(len(rows))), block_size, seed)):
        assert_close(found, case.dense(row))


@pytest.mark.parametrize("extras", EXTRAS)
def test_a_crowd_changes_nothing(extras: Extras) -> None:
    case = Case.make([(9, 1), (0, 6), (30, 1), (0, 1), (5, 4), (2, 1)], 4, 2, extras, seed=1)
    together = case.paged(list(range(6)), block_size=4, seed=2)
    for row, found in enumerate(together):
        (alone,) = case.paged([row], block_size=4, seed=3)
        torch.testing.assert_close(found, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("extras", [Extras(), Extras(window=40)])
@pytest.mark.parametrize("count", [MAX_QUERIES, MAX_QUERIES + 1, 2 * MAX_QUERIES + 3])
def test_chunks_longer_than_a_segment(count: int, extras: Extras) -> None:
    case = Case.make([(3, count), (10, 1)], 2, 1, extras, seed=4)
    found, decode = case.paged([0, 1], block_size=16, seed=5)
    assert_close(found, case.dense(0))
    assert_close(decode, case.dense(1))


def test_long_chunks_are_cut_so_that_scores_stay_small() -> None:
    table = torch.arange(1, 301, dtype=torch.int32).view(1, -1)
    plan = PagedAttention().plan_step(StepRows(StepLayout.of([0], [1100]), table.numpy(), 4, window=8))
    assert [segment.queries.shape[1] for segment in plan.segments] == [256, 256, 256, 256, 76]
    assert max(segment.key_slots.shape[1] for segment in plan.segments) == 256 + 7


def test_rows_with_one_query_share_a_segment() -> None:
    table = torch.arange(1, 13, dtype=torch.int32).view(3, 4)
    plan = PagedAttention().plan_step(StepRows(StepLayout.of([3, 0, 9], [1, 4, 1]), table.numpy(), 4, window=None))
    assert [tuple(segment.queries.shape) for segment in plan.segments] == [(2, 1), (1, 4)]
    assert plan.slot_mapping.tolist() == [4 * 1 + 3, *range(20, 24), 4 * 11 + 1]


def test_keys_are_read_after_rounding_to_the_cache() -> None:
    """Also those of the chunk itself: a token's result cannot depend on whether a key came with it or before."""
    case = Case.make([(0, 6)], 2, 2, Extras(), seed=6)
    (found,) = case.paged([0], 4, 7, dtype=torch.bfloat16)
    rounded = Case(
        case.rows,
        case.q,
        [k.bfloat16().float() for k in case.k],
        [v.bfloat16().float() for v in case.v],
        None,
        None,
        Extras(),
    )
    assert_close(found, rounded.dense(0))
    assert (found.double() - case.dense(0)).abs().max() > 1e-4


def test_a_row_may_read_what_a_mate_writes_in_the_same_step() -> None:
    """Two requests with one prompt share the blocks of its start while one of them still computes them."""
    case = Case.make([(0, 8)], 2, 1, Extras(), seed=8)
    q, k, v = case.q[0], case.k[0], case.v[0]
    table = torch.tensor([[1, 2, 0], [1, 3, 0]], dtype=torch.int32)
    backend = PagedAttention()
    plan = backend.plan_step(StepRows(StepLayout.of([0, 4], [8, 4]), table.numpy(), 4, None))
    caches = torch.full((2, 16, 1, HEAD_SIZE), math.nan)
    caches[:, :4] = 0.0
    state = PagedState(caches[0], caches[1], 0)
    out = backend.attend(*(torch.cat([x, x[4:]]) for x in (q, k, v)), state, plan, HEAD_SIZE**-0.5)
    assert_close(out[:8], case.dense(0))
    torch.testing.assert_close(out[8:], out[4:8], rtol=1e-6, atol=1e-6)


def test_what_stands_in_the_null_block_does_not_matter() -> None:
    case = Case.make([(9, 1), (0, 1)], 2, 1, Extras(), seed=9)
    backend = PagedAttention()
    table = torch.tensor([[1, 2, 3], [4, 0, 0]], dtype=torch.int32)
    plan = backend.plan_step(StepRows(StepLayout.of([9, 0], [1, 1]), table.numpy(), 4, None))
    outs = []
    for value in (0.0, 1e4):
        caches = torch.zeros(2, 20, 1, HEAD_SIZE)
        caches[:, :4] = value
        state = PagedState(caches[0], caches[1], 0)
        q, k, v = (torch.cat([x[0][9:], x[1]]) for x in (case.q, case.k, case.v))
        outs.append(backend.attend(q, k, v, state, plan, 0.3))
    assert torch.equal(outs[0], outs[1])
