from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from motet.core.params import RowSampling
from motet.ops.reference.greedy import greedy
from motet.sampling.columns import SamplingColumns, TokenHistory
from motet.sampling.sampler import ERRORS, SampledRows, Sampler
from tests.sampling.rows import Row, processed, random_logits, rows, sample

OK, NOT_FINITE, ALL_MASKED, OVERFLOW = ERRORS
V = 61


def entry(result: SampledRows, n: int) -> tuple:
    return result.token_ids[n], result.logprobs[n], result.errors[n]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows(V), min_size=2, max_size=6), st.integers(0, 2**31), st.randoms(use_true_random=False))
def test_batched_equals_alone(batch: list[Row], seed: int, random):
    logits = random_logits(seed, len(batch), V).bfloat16().float()  # bfloat16: many equals
    together = sample(logits, batch, random.sample(range(9), len(batch)))
    for n, row in enumerate(batch):
        assert entry(together, n) == entry(sample(logits[n : n + 1], [row]), 0)


# derandomize: float32 rounding may put a token that is 1e-7 from a border on the other side of the reference's
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(rows(V), st.integers(0, 2**31))
def test_the_reference_would_allow_the_token(row: Row, seed: int):
    logits = random_logits(seed, 1, V)
    token_id, logprobs, error = entry(sample(logits, [row]), 0)
    reference = processed(logits[0], row)
    if (reference == -torch.inf).all():
        assert (token_id, logprobs, error) == (-1, None, ALL_MASKED)
        return
    assert error is None
    assert reference[token_id] > -torch.inf
    assert (logprobs is None) == (row.sampling.num_logprobs is None)
    assert logprobs is None or logprobs.token_ids[0] == token_id
    if row.sampling.is_greedy:
        assert reference[token_id] >= reference.max() - 1e-5


def test_a_crowd_over_many_blocks_equals_each_alone():
    logits = random_logits(5, 64, 6000)
    batch = [
        Row(
            RowSampling(
                temperature=0.0 if n % 3 == 0 else 0.4 + n / 40,
                top_p=[1.0, 0.9, 0.5][n % 3 - 1],
                top_k=[0, 40, 0, 2000][n % 4],
                min_p=[0.0, 0.0, 0.05][n // 2 % 3],
                repetition_penalty=[1.0, 1.2][n // 3 % 2],
                seed=n // 2,
                num_logprobs=[None, 0, 5, None][n % 4],
            ),
            (n, n + 1, n + 2),
            (n * 7,) * (n % 4),
        )
        for n in range(64)
    ]
    together = sample(logits, batch)
    for n in range(64):
        assert entry(together, n) == entry(sample(logits[n : n + 1], [batch[n]]), 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        assert sample(logits, batch) == together
    finally:
        torch.set_num_threads(threads)


CASES = {
    "plain": Row(RowSampling()),
    "temperature": Row(RowSampling(temperature=1.6)),
    "min_p": Row(RowSampling(min_p=0.1)),
    "top_k": Row(RowSampling(top_k=7)),
    "top_p": Row(RowSampling(top_p=0.8)),
    "all": Row(
        RowSampling(
            temperature=1.4,
            min_p=0.01,
            top_k=15,
            top_p=0.9,
            repetition_penalty=1.2,
            presence_penalty=0.4,
            frequency_penalty=0.2,
            logit_bias={4: 2.0},
            bad_words=((11,),),
            allowed_token_ids=tuple(range(40)),
        ),
        (1, 2, 3),
        (4, 5, 4),
    ),
}


def with_changes(row: Row, **changes) -> Row:
    return Row(msgspec.structs.replace(row.sampling, **changes), row.prompt, row.output)


def assert_frequencies(token_ids: list[int], probs: np.ndarray):
    """Chi-square, the tokens that are expected less than 5 times taken together."""
    counts, wanted = np.bincount(token_ids, minlength=V), probs * len(token_ids)
    assert counts[wanted == 0].sum() == 0
    is_rare = (wanted < 5) & (wanted > 0)
    observed = np.append(counts[wanted >= 5], counts[is_rare].sum())
    expected = np.append(wanted[wanted >= 5], wanted[is_rare].sum())
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    assert len(expected) > 3
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_frequencies_over_seeds_match_hugging_faces_processors(name: str):
    logits, num_draws = random_logits(12, 1, V, 1.5), 6000
    drawn = sample(logits.expand(num_draws, V), [with_changes(CASES[name], seed=seed) for seed in range(num_draws)])
    assert_frequencies(drawn.token_ids, processed(logits[0], CASES[name]).double().softmax(dim=0).numpy())


def test_frequencies_over_positions_match_too():
    logits, num_draws = random_logits(13, 1, V, 1.5), 6000
    columns = SamplingColumns(1, V)
    columns.set(0, RowSampling(seed=77, top_k=30))
    history = TokenHistory(np.zeros((1, num_draws), dtype=np.int32), np.ones(1, dtype=np.int32))
    view = columns.view(np.zeros(num_draws, dtype=np.int64), np.arange(num_draws), history)
    drawn = Sampler(greedy).sample(logits.expand(num_draws, V), view)
    row = Row(RowSampling(top_k=30))
    assert_frequencies(drawn.token_ids, processed(logits[0], row).double().softmax(dim=0).numpy())


def test_a_seeded_token_depends_on_seed_and_position_only():  # B11
    logits, row = random_logits(1, 1, V, 1.0), Row(RowSampling(seed=1), (5, 6, 7), (8,))
    mates = [Row(RowSampling(seed=n, top_k=n % 5), (n,)) for n in range(6)]
    mate_logits = random_logits(2, 6, V, 1.0)
    alone = sample(logits, [row]).token_ids[0]
    # another place, other mates, and steps that were taken in between and drew or threw away tokens
    for n in range(7):
        crowd = torch.cat([mate_logits[:n], logits, mate_logits[n:]])
        batch = [*mates[:n], row, *mates[n:]]
        places = [3, 9, 1, 7, 0, 5, 2]
        assert sample(crowd, batch, places).token_ids[n] == alone
    # where the prompt ends does not matter, only where the token stands
    assert sample(logits, [Row(row.sampling, (5,), (6, 7, 8))]).token_ids[0] == alone
    others = [sample(logits, [with_changes(row, seed=seed)]).token_ids[0] for seed in range(2, 30)]
    further = [sample(logits, [Row(row.sampling, (5,) * n)]).token_ids[0] for n in range(5, 30)]
    assert len(set(others)) > 5
    assert len(set(further)) > 5


def test_drafted_positions_get_the_tokens_that_would_have_been_drawn_anyway():
    columns, logits = SamplingColumns(3, V), random_logits(4, 4, V)
    columns.set(1, RowSampling(seed=5, presence_penalty=1.0, bad_words=((3, 4),)))
    token_ids = np.zeros((3, 16), dtype=np.int32)
    token_ids[1, :7] = [9, 9, 9, 3, 7, 3, 8]
    history = TokenHistory(token_ids, np.array([0, 3, 0], dtype=np.int32))
    at_once = Sampler(greedy).sample(logits, columns.view(np.array([1] * 4), np.arange(4, 8), history))
    for n in range(4):
        one = Sampler(greedy).sample(logits[n : n + 1], columns.view(np.array([1]), np.array([4 + n]), history))
        assert entry(one, 0) == entry(at_once, n)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_masked_rows_end_with_an_error(temperature: float):  # B23
    logits = random_logits(6, 3, V)
    mate = Row(RowSampling(temperature=temperature, seed=3, num_logprobs=1))
    masked = RowSampling(temperature=temperature, allowed_token_ids=(5, 6), bad_words=((5,), (6,)), num_logprobs=2)
    result = sample(logits, [mate, Row(masked), mate])
    assert entry(result, 1) == (-1, None, ALL_MASKED)
    for n in (0, 2):
        assert entry(result, n) == entry(sample(logits[n : n + 1], [mate]), 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_longer_bad_word_empties_the_row_later(temperature: float):  # B23
    sampling = RowSampling(temperature=temperature, allowed_token_ids=(5, 6), bad_words=((6,), (5, 5, 5)))
    logits, output = random_logits(7, 1, V), ()
    for _ in range(2):
        result = sample(logits, [Row(sampling, (5, 5), output)])
        assert result.token_ids == [5]
        output += (5,)
    assert entry(sample(logits, [Row(sampling, (5, 5), output)]), 0) == (-1, None, ALL_MASKED)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "changes",
    [
        {"allowed_token_ids": (V, V + 5, 2**63)},
        {"allowed_token_ids": (4,), "min_tokens": 1, "suppressed_until_min": (4,)},
        {"allowed_token_ids": (4,), "logit_bias": {4: -1e39}, "bad_words": ((4,),)},
    ],
)
def test_other_ways_to_forbid_everything(changes: dict, temperature: float):
    row = Row(RowSampling(temperature=temperature, top_k=3, top_p=0.5, min_p=0.1, **changes))
    assert entry(sample(random_logits(8, 1, V), [row]), 0) == (-1, None, ALL_MASKED)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 30, V - 1])
def test_non_finite_logits_end_their_row_only(bad: float, place: int):
    logits = random_logits(9, 6, V)
    kinds = [
        Row(RowSampling(temperature=0.0)),
        Row(RowSampling(temperature=0.0, logit_bias={3: 1.0})),
        Row(RowSampling(seed=4, top_k=9, top_p=0.8, min_p=0.01, repetition_penalty=1.1, num_logprobs=4)),
    ]
    batch = [*kinds, *kinds]
    good = sample(logits, batch)
    logits[3:, place] = bad
    result = sample(logits, batch)
    for n in range(3):
        assert entry(result, n) == entry(good, n)
        assert entry(result, 3 + n) == (-1, None, NOT_FINITE)


def test_a_masked_non_finite_logit_still_counts():
    logits = random_logits(9, 1, V)
    logits[0, 7] = torch.nan
    assert sample(logits, [Row(RowSampling(allowed_token_ids=(1, 2)))]).errors == [NOT_FINITE]


def test_tokens_the_model_itself_forbids_are_no_error():
    logits = random_logits(10, 2, V)
    logits[:, 5:] = -torch.inf
    result = sample(logits, [Row(RowSampling(temperature=0.0)), Row(RowSampling(num_logprobs=7))])
    assert result.errors == [None, None]
    assert max(result.token_ids) < 5
    assert sample(torch.full((1, V), -torch.inf), [Row(RowSampling(temperature=0.0))]).errors == [NOT_FINITE]


@pytest.mark.parametrize(
    "changes",
    [{"logit_bias": {3: 3e38}}, {"temperature": 1e-4}, {"temperature": 0.0, "logit_bias": {3: float("nan")}}],
)
def test_overflow_is_an_error_of_its_row(changes: dict):
    logits = random_logits(11, 2, V)
    logits[0] *= 1e37
    logits[0, 3] = 1e38
    result = sample(logits, [Row(RowSampling(**changes)), Row(RowSampling(temperature=0.0))])
    assert entry(result, 0) == (-1, None, OVERFLOW)
    assert entry(result, 1) == (int(logits[1].argmax()), None, OK)


def test_greedy_takes_the_lowest_id_among_equals():
    logits = torch.zeros(3, V)
    logits[:, [7, 30, 60]] = 2.0
    batch = [Row(RowSampling(temperature=0.0)), Row(RowSampling(temperature=0.0, logit_bias={7: -1.0}))]
    assert sample(logits[:2], batch).token_ids == [7, 30]


def test_ids_at_the_edge_of_the_vocabulary():  # B22
    logits = torch.zeros(1, V)
    edge, far = V - 1, (V, V + 5, 2**63)
    greedy = {"temperature": 0.0}
    assert sample(logits, [Row(RowSampling(**greedy, allowed_token_ids=(*far, edge)))]).token_ids == [edge]
    assert sample(logits, [Row(RowSampling(**greedy, logit_bias={edge: 1.0, V: 9.0}))]).token_ids == [edge]
    logits[0, edge] = 1.0
    stops = RowSampling(**greedy, min_tokens=1, suppressed_until_min=(V + 5, edge), bad_words=((V + 5,), (V + 5, 0)))
    assert sample(logits, [Row(stops)]).token_ids == [0]
    assert sample(logits, [Row(stops, (1,), (2,))]).token_ids == [edge]


def test_the_filters_never_empty_a_row():
    logits = random_logits(14, 200, V, 30.0)
    sampling = {"top_p": 1e-9, "top_k": 1, "min_p": 1.0}
    result = sample(logits, [Row(RowSampling(**sampling, seed=n)) for n in range(200)])
    assert result.token_ids == logits.argmax(dim=1).tolist()


def test_logprobs_are_raw_and_logits_are_left_alone():
    logits = random_logits(15, 2, V)
    before = logits.clone()
    edits = {"logit_bias": {3: 50.0}, "temperature": 0.3, "top_k": 2, "repetition_penalty": 1.9}
    result = sample(logits, [Row(RowSampling(**edits, num_logprobs=3)), Row(RowSampling(temperature=0.0))])
    assert torch.equal(logits, before)
    assert result.token_ids[0] == 3
    raw = before[0].double().log_softmax(dim=0)
    described = result.logprobs[0]
    assert described.token_ids == [3, *raw.argsort(descending=True)[:3].tolist()]
    assert described.logprobs == pytest.approx(raw[described.token_ids].tolist(), abs=1e-5)
    assert described.rank == 1 + int((raw > raw[3]).sum())
    assert result.logprobs[1] is None


def test_no_rows():
    columns = SamplingColumns(1, V)
    history = TokenHistory(np.zeros((1, 4), dtype=np.int32), np.zeros(1, dtype=np.int32))
    nothing = columns.view(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), history)
    assert Sampler(greedy).sample(torch.empty(0, V), nothing) == SampledRows([], [], [])
