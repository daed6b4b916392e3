from __future__ import annotations

import math

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from motet.core.params import RowSampling
from motet.sampling import blocks
from motet.sampling.steps import MinP, TopK, TopP, min_p, top_k, top_p
from tests.sampling.rows import Row, processed, random_logits, view_of

NO_IDS = torch.zeros(1, 1, dtype=torch.int64)


def by_row(logits: Tensor, warpers: list) -> Tensor:
    return torch.cat([warper(NO_IDS, logits[n : n + 1]) for n, warper in enumerate(warpers)])


@pytest.mark.parametrize("scale", [0.3, 3.0, 12.0])
def test_min_p_is_hugging_faces(scale: float):
    logits, values = (
        random_logits(3, 12, 3001, scale),
        [1.0, 0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4, 1e-6, 1e-9],
    )
    ours = min_p(logits, torch.tensor([math.log(value) for value in values]))
    assert torch.equal(ours, by_row(logits, [MinPLogitsWarper(value) for value in values]))


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_top_k_is_hugging_faces(scale: float):
    logits, values = random_logits(4, 8, 3001, scale), [1, 2, 3, 20, 500, 3000, 3001, 9999]
    ours = top_k(logits, torch.tensor(values))
    assert torch.equal(ours, by_row(logits, [TopKLogitsWarper(value) for value in values]))


def test_top_k_keeps_the_equals_of_the_kth():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]]).repeat(6, 1)
    values = [1, 2, 3, 4, 5, 6]
    ours = top_k(logits, torch.tensor(values))
    assert torch.equal(ours, by_row(logits, [TopKLogitsWarper(value) for value in values]))
    assert ours.isfinite().sum(dim=1).tolist() == [1, 4, 4, 4, 5, 6]


# 0.3: the nucleus is much wider than NUCLEUS_WIDTH, so that rows go through every width
@pytest.mark.parametrize("scale", [0.3, 3.0, 12.0])
@pytest.mark.parametrize("vocab_size", [40, 3001, 20_000])
def test_top_p_is_hugging_faces(scale: float, vocab_size: int):
    logits, values = random_logits(5, 8, vocab_size, scale), [1e-6, 0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999]
    ours = top_p(logits, torch.tensor(values, dtype=torch.float64))
    theirs = by_row(logits, [TopPLogitsWarper(value) for value in values])
    if vocab_size <= 3001:
        assert torch.equal(ours, theirs)
    else:  # Hugging Face adds float32: masses of 1e-7 near the border may fall on either side
        assert torch.equal(ours[:5], theirs[:5])
        differs = ours != theirs
        assert differs.sum(dim=1).max() <= 2
        assert (logits.softmax(dim=1)[differs] < 1e-4).all()
    assert ours[0].isfinite().sum() == 1


def test_top_p_keeps_as_many_equals_as_hugging_face_and_the_lower_ids():
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0, -2.0]]).repeat(3, 1)
    values = [0.2, 0.4, 0.9]
    ours = top_p(logits, torch.tensor(values, dtype=torch.float64))
    theirs = by_row(logits, [TopPLogitsWarper(value) for value in values])
    assert torch.equal(ours.sort(dim=1).values, theirs.sort(dim=1).values)
    assert ours.isfinite().int().tolist() == [[0, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0]]


def test_a_row_does_not_depend_on_the_other_rows_or_their_parameters():
    logits = random_logits(6, 9, 5000, 0.7)
    p = torch.tensor([0.999, 0.1, 0.5, 0.9, 0.99, 0.2, 0.7, 0.95, 0.4], dtype=torch.float64)
    k = torch.tensor([5000, 1, 7, 4000, 3, 50, 2, 9, 11])
    for function, values in ((top_p, p), (top_k, k), (min_p, p.log().float())):
        together = function(logits, values)
        for n in range(9):
            assert torch.equal(together[n], function(logits[n : n + 1], values[n : n + 1])[0])


def test_filter_steps_touch_only_their_rows_in_any_blocks(monkeypatch: pytest.MonkeyPatch):
    logits, rows = random_logits(7, 6, 50), torch.tensor([4, 1, 2])
    steps = (
        MinP(rows, torch.tensor([-0.5, -1.0, -2.0])),
        TopK(rows, torch.tensor([3, 9, 20])),
        TopP(rows, torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64)),
    )
    expected = [
        min_p(logits[rows], steps[0].log_min_p),
        top_k(logits[rows], steps[1].k),
        top_p(logits[rows], steps[2].p),
    ]
    for block_elements in (50, 100, 10_000):
        monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", block_elements)
        for step, wanted in zip(steps, expected):
            edited = logits.clone()
            step.apply(edited)
            assert torch.equal(edited[rows], wanted)
            assert torch.equal(edited[[0, 3, 5]], logits[[0, 3, 5]])


EDITS = {
    "allowed": RowSampling(allowed_token_ids=(3, 9, 3, 40)),
    "bad_words": RowSampling(bad_words=((5,), (7, 8, 6), (8, 4), (9, 2))),
    "min_tokens": RowSampling(min_tokens=4, suppressed_until_min=(0, 49)),
    "min_tokens reached": RowSampling(min_tokens=3, suppressed_until_min=(0, 49)),
    "bias": RowSampling(logit_bias={0: 5.0, 49: -100.0, 12: 0.25}),
    "repetition": RowSampling(repetition_penalty=1.7),
    "repetition below 1": RowSampling(repetition_penalty=0.6),
    "presence": RowSampling(presence_penalty=1.1),
    "frequency": RowSampling(frequency_penalty=-0.7),
    "all": RowSampling(
        allowed_token_ids=tuple(range(30)),
        bad_words=((1,), (8, 4)),
        min_tokens=9,
        suppressed_until_min=(2,),
        logit_bias={8: 1.0, 40: 9.0},
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_edits_equal_the_reference(name: str):
    row = Row(msgspec.structs.replace(EDITS[name], temperature=0.0), (7, 30, 11, 11), (8, 7, 8))
    mate = Row(RowSampling(temperature=0.0, logit_bias={1: 1.0}), (2, 2), (3,))
    logits = random_logits(8, 3, 50)
    view = view_of([mate, row, mate], 50)
    edited = logits.clone()
    for edit in view.edits:
        edit.apply(edited)
    assert torch.allclose(edited[1], processed(logits[1], row), rtol=0, atol=1e-6)
    assert torch.equal(edited[1] == -torch.inf, processed(logits[1], row) == -torch.inf)
    assert torch.equal(edited[0], processed(logits[0], mate))
    assert torch.equal(edited[2], processed(logits[2], mate))
