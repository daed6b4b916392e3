from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from motet.core.params import RowSampling
from motet.sampling.columns import SamplingColumns, TokenHistory
from motet.sampling.noise import as_int64, stream_keys
from tests.sampling.rows import Row, view_of

VOCAB = 10
GREEDY = {"temperature": 0.0}


def edited(row: Row, logits: Tensor | None = None) -> list[float]:
    """What a greedy row's logits, all 1.0 unless given, become."""
    logits = torch.ones(1, VOCAB) if logits is None else logits[None].clone()
    for edit in view_of([row], VOCAB).edits:
        edit.apply(logits)
    return logits[0].tolist()


def forbidden(row: Row) -> set[int]:
    return {token_id for token_id, value in enumerate(edited(row)) if value == -torch.inf}


def test_a_greedy_batch_without_features_asks_for_nothing():
    view = view_of([Row(RowSampling(**GREEDY, top_k=3, top_p=0.5, min_p=0.1))] * 3, VOCAB)
    assert view.plain.tolist() == [0, 1, 2]
    assert (len(view.worked), view.edits, view.filters, view.num_logprobs) == (0, (), (), {})


def test_only_rows_that_need_work_are_worked_on_and_drawn_ones_come_first():
    rows = [
        Row(RowSampling(**GREEDY)),
        Row(RowSampling(**GREEDY, logit_bias={1: 1.0}, num_logprobs=0)),
        Row(RowSampling(temperature=0.5, num_logprobs=99)),
        Row(RowSampling(top_k=2)),
    ]
    view = view_of(rows, VOCAB)
    assert view.plain.tolist() == [0]
    assert view.worked.tolist() == [2, 3, 1]
    assert view.num_drawn == len(view.keys) == 2
    assert view.num_logprobs == {1: 0, 2: VOCAB}
    assert [type(step).__name__ for step in view.edits + view.filters] == ["AddBias", "Temperature", "TopK"]


def test_keys_are_those_of_seed_and_position():
    rows = [Row(RowSampling(seed=seed), (1,) * 3, (2,) * n) for n, seed in enumerate([0, -1, 2**64 - 1, 2**63])]
    seeds = torch.tensor([0, -1, -1, as_int64(2**63)])
    assert torch.equal(view_of(rows, VOCAB).keys, stream_keys(seeds, torch.tensor([3, 4, 5, 6])))


def test_presence_and_frequency_see_only_the_output():
    row = Row(RowSampling(**GREEDY, presence_penalty=0.5, frequency_penalty=0.25), (3, 3, 4), (5, 4, 5))
    assert edited(row) == [1, 1, 1, 1, 0.25, 0, 1, 1, 1, 1]


def test_repetition_sees_prompt_and_output_and_counts_each_token_once():
    row = Row(RowSampling(**GREEDY, repetition_penalty=2.0), (3, 3, 4), (5, 4))
    assert edited(row) == [1, 1, 1, 0.5, 0.5, 0.5, 1, 1, 1, 1]
    assert edited(row, -torch.ones(VOCAB)) == [-1, -1, -1, -2, -2, -2, -1, -1, -1, -1]


def test_repetition_comes_before_the_subtractions():
    row = Row(RowSampling(**GREEDY, repetition_penalty=2.0, presence_penalty=0.25), (1,), (5,))
    assert edited(row)[5] == 0.25


def test_nothing_is_penalised_before_the_first_output():
    row = Row(RowSampling(**GREEDY, presence_penalty=2.0, frequency_penalty=2.0), (3, 4))
    assert edited(row) == [1.0] * VOCAB


def test_placeholder_ids_in_the_history_are_skipped():
    row = Row(RowSampling(**GREEDY, repetition_penalty=2.0, presence_penalty=0.25), (VOCAB + 3, -1, 2), (-1, VOCAB))
    assert edited(row) == [1, 1, 0.5, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "output, expected",
    [
        ((), {9}),
        ((1,), {9, 2}),
        ((1, 2), {9, 3}),
        ((4, 2), {9}),
        ((5, 1), {9, 2}),
        ((1, 2, 3), {9}),
        ((6, 6), {9, 6}),
        ((6,), {9}),
    ],
)
def test_bad_words(output: tuple[int, ...], expected: set[int]):
    words = ((9,), (1, 2), (1, 2, 3), (6, 6, 6), (2, 1, 2, 4))
    assert forbidden(Row(RowSampling(**GREEDY, bad_words=words), (7, 1), output)) == expected


def test_a_bad_word_begins_in_the_output():
    assert forbidden(Row(RowSampling(**GREEDY, bad_words=((7, 1, 2),)), (7, 1), ())) == set()
    assert forbidden(Row(RowSampling(**GREEDY, bad_words=((7, 1, 2),)), (7,), (1,))) == set()


@pytest.mark.parametrize("num_outputs, expected", [(0, {2, 5}), (2, {2, 5}), (3, set()), (4, set())])
def test_min_tokens(num_outputs: int, expected: set[int]):
    sampling = RowSampling(**GREEDY, min_tokens=3, suppressed_until_min=(2, 5))
    assert forbidden(Row(sampling, (1, 1, 1, 1), (8,) * num_outputs)) == expected


FAR = (-1, VOCAB, VOCAB + 5, 2**31, 2**63, 2**64 + 3, -(2**70))


def test_ids_outside_the_vocabulary_are_ignored():  # B22
    edge = VOCAB - 1
    assert forbidden(Row(RowSampling(**GREEDY, min_tokens=2, suppressed_until_min=(*FAR, edge)))) == {edge}
    assert forbidden(Row(RowSampling(**GREEDY, allowed_token_ids=(*FAR, edge, 0)))) == set(range(1, edge))
    assert forbidden(Row(RowSampling(**GREEDY, allowed_token_ids=FAR))) == set(range(VOCAB))
    words = (*((far,) for far in FAR), *((far, 1) for far in FAR), *((1, far) for far in FAR), (edge,), ())
    assert forbidden(Row(RowSampling(**GREEDY, bad_words=words), (1,), (1,))) == {edge}
    biased = Row(RowSampling(**GREEDY, logit_bias={**dict.fromkeys(FAR, 4.0), edge: 2.0}))
    assert edited(biased) == [1.0] * edge + [3.0]


def test_numbers_too_large_for_a_column_mean_the_largest():
    row = Row(
        RowSampling(temperature=1e300, top_k=2**70, min_tokens=2**70, suppressed_until_min=(4,), num_logprobs=2**70)
    )
    view = view_of([row], VOCAB)
    assert [type(step).__name__ for step in view.edits + view.filters] == ["Forbid", "Temperature"]
    assert view.filters[0].temperature.isfinite().all()
    assert view.num_logprobs == {0: VOCAB}


def test_a_row_may_have_several_entries_each_with_its_own_history():
    columns = SamplingColumns(4, VOCAB)
    columns.set(
        2, RowSampling(**GREEDY, presence_penalty=1.0, bad_words=((5, 6),), min_tokens=2, suppressed_until_min=(0,))
    )
    token_ids = np.zeros((4, 8), dtype=np.int32)
    token_ids[2, :5] = [1, 2, 5, 3, 5]
    history = TokenHistory(token_ids, np.array([0, 0, 2, 0], dtype=np.int32))
    logits = torch.zeros(4, VOCAB)
    for edit in columns.view(np.array([2, 2, 2, 2]), np.array([2, 3, 4, 5]), history).edits:
        edit.apply(logits)
    no, inf = 0.0, -torch.inf
    assert logits.tolist() == [
        [inf, no, no, no, no, no, no, no, no, no],
        [inf, no, no, no, no, -1, inf, no, no, no],
        [no, no, no, -1, no, -1, no, no, no, no],
        [no, no, no, -1, no, -1, inf, no, no, no],
    ]


def test_a_reused_row_keeps_nothing():
    columns = SamplingColumns(1, VOCAB)
    everything = RowSampling(
        allowed_token_ids=(1,),
        bad_words=((1,),),
        min_tokens=3,
        suppressed_until_min=(1,),
        logit_bias={1: 1.0},
        repetition_penalty=2.0,
        presence_penalty=1.0,
        top_k=2,
        num_logprobs=1,
        num_prompt_logprobs=3,
    )
    history = TokenHistory(np.ones((1, 4), dtype=np.int32), np.ones(1, dtype=np.int32))
    columns.set(0, everything)
    assert columns.num_prompt_logprobs(0) == 3
    assert len(columns.view(np.array([0]), np.array([2]), history).edits) == 6
    for reset in (lambda: columns.clear(0), lambda: None):
        columns.set(0, everything)
        reset()
        columns.set(0, RowSampling(repetition_penalty=2.0))
        view = columns.view(np.array([0]), np.array([2]), history)
        assert [type(step).__name__ for step in view.edits + view.filters] == ["PenaliseRepetition"]
        assert view.num_logprobs == {}
        assert columns.num_prompt_logprobs(0) is None


def test_no_entries():
    history = TokenHistory(np.zeros((2, 4), dtype=np.int32), np.zeros(2, dtype=np.int32))
    view = SamplingColumns(2, VOCAB).view(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), history)
    assert (view.num_entries, len(view.plain), len(view.worked)) == (0, 0, 0)
