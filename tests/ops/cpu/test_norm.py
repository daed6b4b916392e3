"""The RMSNorm kernels: bits that depend on nothing but the row, special values, and refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from motet.ops import cpu
from motet.ops.cpu import library
from motet.ops.reference.norm import DTYPES, EPS, WIDTHS, random_rows

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="installed without the C++ kernels")

OPS = cpu.CpuOps()


def equal_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype is other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_alone_is_a_row_in_the_batch(threads: int, width: int, dtype: torch.dtype) -> None:
    x, weight = random_rows(64, width, dtype)
    normed = OPS.rms_norm(x, weight, EPS)
    for row in (0, 1, 31, 63):
        alone = slice(row, row + 1)
        assert equal_bits(OPS.rms_norm(x[alone], weight, EPS), normed[alone])
    for num_rows in (2, 3, 17):
        assert equal_bits(OPS.rms_norm(x[:num_rows], weight, EPS), normed[:num_rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_do_not_change_a_bit(dtype: torch.dtype) -> None:
    x, weight = random_rows(64, 4099, dtype)
    before = torch.get_num_threads()
    outputs = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        outputs.append(OPS.rms_norm(x, weight, EPS))
    torch.set_num_threads(before)
    for other in outputs[1:]:
        assert equal_bits(outputs[0], other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_instruction_sets_do_not_change_a_bit(width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = random_rows(8, width, dtype)
    x[0, 0], x[1, 0], x[2, 0] = 6.0e-8, -1.0e-5, 6.1e-5  # subnormal and barely normal numbers of float16
    outputs = []
    for isa in library.supported_isas():
        monkeypatch.setattr(library, "_loaded", library._kernels.Kernels(isa))
        outputs.append(OPS.rms_norm(x, weight, EPS))
    for other in outputs[1:]:
        assert equal_bits(outputs[0], other)


@pytest.mark.parametrize("isa", library.supported_isas())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_conversions_are_torch_s(isa: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 65,536 halves plus a residual: the sum is exact in float32, so its rounding is the conversion's own."""
    monkeypatch.setattr(library, "_loaded", library._kernels.Kernels(isa))
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).reshape(16, -1)
    for residual in (torch.zeros_like(every), every, every.flip(1)):
        summed = OPS.add(every, residual)
        expected = (every.float() + residual.float()).to(dtype)
        is_nan = expected.isnan()
        assert torch.equal(summed.isnan(), is_nan)
        assert equal_bits(summed.masked_fill(is_nan, 0), expected.masked_fill(is_nan, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_row_stays_alone(dtype: torch.dtype) -> None:
    x, weight = random_rows(3, 40, dtype)
    clean = OPS.rms_norm(x, weight, EPS)
    x[1, 3] = float("nan")
    got = OPS.rms_norm(x, weight, EPS)
    assert got[1].isnan().all()
    assert equal_bits(got[0], clean[0])
    assert equal_bits(got[2], clean[2])


def test_zero_rows() -> None:
    assert OPS.rms_norm(torch.empty(0, 8), torch.ones(8), EPS).shape == (0, 8)


def test_inputs_are_left_alone() -> None:
    x, weight = random_rows(4, 40, torch.bfloat16)
    kept = (x.clone(), weight.clone())
    OPS.rms_norm(x, weight, EPS)
    assert equal_bits(x, kept[0])
    assert equal_bits(weight, kept[1])


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.ones(2, 8, dtype=torch.float64), torch.ones(8), "x must be float32, bfloat16 or float16.*float64"),
        (torch.ones(2, 8), torch.ones(8, dtype=torch.bfloat16), r"weight must be float32 \[8\].*bfloat16"),
        (torch.ones(2, 8), torch.ones(7), r"weight must be float32 \[8\].*\[7\]"),
        (torch.ones(8, 2).T, torch.ones(8), "contiguous"),
        (torch.ones(2, 8), torch.ones(16)[::2], "contiguous"),
        (torch.ones(2, 8, device="meta"), torch.ones(8), "CPU"),
    ],
)
def test_what_the_kernel_cannot_read_is_refused(x: Tensor, weight: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OPS.rms_norm(x, weight, EPS)
