"""Drafts are accepted by the token that is drawn anyway, or by the rule of speculative sampling."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import chisquare

from motet.core.params import RowSampling
from motet.ops.backend import ReferenceOps
from motet.sampling.columns import SamplingColumns, SamplingView, TokenHistory
from motet.sampling.sampler import Sampler
from motet.sampling.verify import ExactAcceptance, RejectionAcceptance

VOCAB = 12
SAMPLER = Sampler(ReferenceOps().greedy)


def view_of(sampling: RowSampling, positions: list[int]) -> SamplingView:
    columns = SamplingColumns(1, VOCAB)
    columns.set(0, sampling)
    history = TokenHistory(np.zeros((1, 4096), np.int32), np.array([1], np.int32))
    return columns.view(np.zeros(len(positions), np.int64), np.array(positions, np.int64), history)


def scores(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def test_drafts_stand_up_to_the_first_that_differs() -> None:
    logits = scores(4)
    view = view_of(RowSampling(temperature=1.0, seed=3), [5, 6, 7, 8])
    drawn = tuple(SAMPLER.sample(logits, view).token_ids)
    wrong = (drawn[1] + 1) % VOCAB
    for drafts, expected in (
        (drawn[:3], drawn),
        ((drawn[0], wrong, drawn[2]), drawn[:2]),
        (((drawn[0] + 1) % VOCAB, *drawn[1:3]), drawn[:1]),
    ):
        (verdict,) = ExactAcceptance(SAMPLER).verify(logits, view, [drafts])
        assert verdict.token_ids == expected


def test_requests_are_verified_apart() -> None:
    logits = scores(5)
    view = view_of(RowSampling(temperature=0.0), [5, 6, 3, 4, 9])
    best = logits.argmax(dim=1).tolist()
    first, second, third = ExactAcceptance(SAMPLER).verify(logits, view, [(best[0],), ((best[2] + 1) % VOCAB,), ()])
    assert first.token_ids == tuple(best[:2])
    assert second.token_ids == (best[2],)
    assert third.token_ids == (best[4],)


def test_an_error_counts_only_where_the_request_comes_to_it() -> None:
    logits = scores(2)
    logits[1, 0] = torch.nan
    view = view_of(RowSampling(temperature=0.0), [5, 6])
    best = int(logits[0].argmax())
    (reached,) = ExactAcceptance(SAMPLER).verify(logits, view, [(best,)])
    assert reached.error is not None
    (spared,) = ExactAcceptance(SAMPLER).verify(logits, view, [((best + 1) % VOCAB,)])
    assert (spared.error, spared.token_ids) == (None, (best,))


def test_rejection_keeps_the_distribution_and_describes_what_it_chose() -> None:
    num = 3000
    row = scores(1, seed=5)
    chances = row.softmax(dim=1)[0].double().numpy()
    draft = int(chances.argsort()[-2])
    counts, num_accepted = np.zeros(VOCAB), 0
    sampling = RowSampling(temperature=1.0, seed=11, num_logprobs=1)
    for position in range(num):
        view = view_of(sampling, [position, position + 1])
        (verdict,) = RejectionAcceptance(SAMPLER).verify(row.repeat(2, 1), view, [(draft,)])
        token = verdict.token_ids[0]
        counts[token] += 1
        num_accepted += len(verdict.token_ids) - 1
        assert len(verdict.logprobs) == len(verdict.token_ids)
        assert verdict.logprobs[0].token_ids[0] == token
        assert abs(np.exp(verdict.logprobs[0].logprobs[0]) - chances[token]) < 1e-4
    assert chisquare(counts, chances / chances.sum() * num).pvalue > 0.001
    assert abs(num_accepted / num - chances[draft]) < 0.05
    exact = [
        SAMPLER.sample(row, view_of(RowSampling(temperature=1.0, seed=11), [position])).token_ids[0]
        for position in range(num)
    ]
    assert chisquare(np.bincount(exact, minlength=VOCAB), chances / chances.sum() * num).pvalue > 0.001


def test_rejection_verifies_greedy_rows_exactly() -> None:
    logits = scores(3)
    view = view_of(RowSampling(temperature=0.0), [5, 6, 7])
    best = logits.argmax(dim=1).tolist()
    (verdict,) = RejectionAcceptance(SAMPLER).verify(logits, view, [(best[0], best[1])])
    assert verdict.token_ids == tuple(best)
