"""The definition of RMSNorm against torch's own and against its formula in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from motet.ops.reference.norm import DTYPES, EPS, WIDTHS, random_rows, rms_norm


@pytest.mark.parametrize("width", WIDTHS)
def test_matches_the_formula_in_float64(width: int) -> None:
    x, weight = random_rows(5, width, torch.float32)
    wide = x.double()
    expected = wide / torch.sqrt((wide**2).mean(-1, keepdim=True) + EPS) * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, EPS), expected.float(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounds_once(dtype: torch.dtype) -> None:
    x, weight = random_rows(5, 576, dtype)
    expected = F.rms_norm(x.float(), (576,), weight, EPS)
    got = rms_norm(x, weight, EPS)
    assert got.dtype is dtype
    # Half a unit in the last place: a second rounding would exceed it somewhere among 2,880 values.
    assert torch.all((got.float() - expected).abs() <= expected.abs() * torch.finfo(dtype).eps * 0.51 + 1e-6)
