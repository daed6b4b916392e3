from __future__ import annotations

import torch

from motet.sampling.masses import UNIT, masses, normalisers
from tests.sampling.rows import random_logits


def test_masses_are_the_exponentials():
    gaps = torch.cat([torch.linspace(-30, 0, 20_011), torch.tensor([-torch.inf, -1e30])])[None]
    expected = gaps.double().exp()
    error = (masses(gaps) * UNIT - expected).abs()
    assert (error <= 0.5 * UNIT + 3e-7 * expected).all()
    assert masses(gaps)[0, gaps[0] == 0] == 2**40
    assert (masses(gaps)[gaps < -28.5] == 0).all()


def test_normalisers():
    logits = random_logits(1, 9, 3001, 4.0)
    logits[1] += 1e6
    logits[2, 5:] = -torch.inf
    logits[3, 7], logits[4, 7], logits[5] = torch.nan, torch.inf, -torch.inf
    found, expected = normalisers(logits), logits.double().logsumexp(dim=1)
    usual = [0, 1, 2, 6, 7, 8]
    assert torch.allclose(found[usual], expected[usual], rtol=0, atol=3e-7)
    assert found[3:6].isnan().all()
