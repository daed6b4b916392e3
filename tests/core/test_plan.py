"""A step plan is plain data: it can be encoded, sent, stored and replayed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.core.params import RowSampling
from motet.core.plan import NewRow, RowPlan, StepPlan

INTS = st.integers(0, 2**31 - 1)
SAMPLING = st.builds(
    RowSampling,
    temperature=st.floats(0, 100),
    top_k=INTS,
    seed=st.integers(-(2**63), 2**63 - 1),
    suppressed_until_min=st.lists(INTS, max_size=3).map(tuple),
    logit_bias=st.dictionaries(INTS, st.floats(-100, 100), max_size=3),
    allowed_token_ids=st.none() | st.lists(INTS, max_size=3).map(tuple),
    bad_words=st.lists(st.lists(INTS, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
    num_logprobs=st.none() | INTS,
)
ROWS = st.builds(
    RowPlan,
    row=INTS,
    request_id=st.text(max_size=5),
    start=INTS,
    num_tokens=INTS,
    emits=st.booleans(),
    new_blocks=st.lists(st.lists(INTS, max_size=3).map(tuple), max_size=2).map(tuple),
)
ADMITS = st.builds(
    NewRow,
    row=INTS,
    request_id=st.text(max_size=5),
    token_ids=st.lists(INTS, max_size=4),
    prompt_len=INTS,
    sampling=SAMPLING,
)
PLANS = st.builds(
    StepPlan,
    step=INTS,
    rows=st.lists(ROWS, max_size=3).map(tuple),
    admits=st.lists(ADMITS, max_size=2).map(tuple),
    frees=st.lists(INTS, max_size=3).map(tuple),
)


@given(plan=PLANS)
def test_a_plan_survives_encoding(plan: StepPlan) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan) == plan
    assert msgspec.json.decode(msgspec.json.encode(plan), type=StepPlan) == plan


@given(plan=PLANS)
def test_a_plan_counts_its_tokens(plan: StepPlan) -> None:
    assert plan.num_tokens == sum(row.num_tokens for row in plan.rows)
    assert plan.is_empty == (not plan.rows and not plan.admits and not plan.frees)


@pytest.mark.parametrize(("num_tokens", "num_rows"), [(1, 1), (16, 1), (16, 3), (5, 5), (17, 4)])
def test_a_dummy_plan_deals_its_tokens_evenly_and_touches_the_null_block_only(num_tokens: int, num_rows: int) -> None:
    plan = StepPlan.dummy(num_tokens, block_size=4, num_groups=2, num_rows=num_rows)
    sizes = [row.num_tokens for row in plan.rows]
    assert (sum(sizes), len(sizes)) == (num_tokens, num_rows)
    assert max(sizes) - min(sizes) <= 1
    assert [len(new.token_ids) for new in plan.admits] == sizes
    for row in plan.rows:
        assert row.emits
        assert row.new_blocks == ((0,) * -(-row.num_tokens // 4),) * 2
    assert StepPlan.free_rows(num_rows).frees == tuple(row.row for row in plan.rows)


def test_a_dummy_plan_has_no_empty_rows() -> None:
    with pytest.raises(AssertionError):
        StepPlan.dummy(2, block_size=4, num_groups=1, num_rows=3)
