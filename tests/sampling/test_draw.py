from __future__ import annotations

import pytest
import torch
from torch import Tensor

from motet.sampling import blocks
from motet.sampling.draw import draw
from motet.sampling.noise import gumbels, stream_keys, uniforms
from tests.sampling.rows import random_logits


def keys_of(num_rows: int, seed: int = 0) -> Tensor:
    return stream_keys(torch.full((num_rows,), seed), torch.arange(num_rows))


def by_definition(scores: Tensor, keys: Tensor) -> Tensor:
    relative = scores.double() - scores.double().amax(dim=1, keepdim=True)
    return (relative + gumbels(uniforms(keys[:, None], torch.arange(scores.shape[1])))).argmax(dim=1)


@pytest.mark.parametrize("vocab_size", [1, 2, 63, 4099])
@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 40.0])
def test_equals_the_definition(vocab_size: int, scale: float):
    scores, keys = random_logits(vocab_size, 60, vocab_size, scale), keys_of(60)
    assert torch.equal(draw(scores, keys), by_definition(scores, keys))


@pytest.mark.parametrize("num_kept", [1, 3, 200, 3000])
def test_equals_the_definition_when_most_is_forbidden(num_kept: int):
    scores, keys = random_logits(num_kept, 40, 4099, 1.0), keys_of(40, seed=9)
    forbidden = random_logits(99, 40, 4099).argsort(dim=1)[:, num_kept:]
    scores.scatter_(1, forbidden, -torch.inf)
    drawn = draw(scores, keys)
    assert torch.equal(drawn, by_definition(scores, keys))
    assert scores.gather(1, drawn[:, None]).isfinite().all()


def test_rows_are_independent_of_mates_and_blocks(monkeypatch: pytest.MonkeyPatch):
    scores, keys = random_logits(1, 50, 500), keys_of(50)
    scores[::3, 20:] = -torch.inf
    together = draw(scores, keys)
    alone = torch.cat([draw(scores[n : n + 1], keys[n : n + 1]) for n in range(50)])
    assert torch.equal(together, alone)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 1500)
    assert torch.equal(draw(scores, keys), together)


def test_hopeless_rows_give_minus_one_and_leave_the_others_alone():
    scores, keys = random_logits(2, 5, 300), keys_of(5)
    good = draw(scores, keys)
    scores[0] = -torch.inf
    scores[2, 7] = torch.nan
    scores[3, 7] = torch.inf
    assert draw(scores, keys).tolist() == [-1, good[1], -1, -1, good[4]]


def test_no_rows():
    assert draw(torch.empty(0, 9), torch.empty(0, dtype=torch.int64)).tolist() == []
