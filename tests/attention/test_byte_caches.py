"""Caches of int8 and FP8 E4M3: rounding, reading, the bits, and how far attention is from that over float32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from motet.attention.cpu import CpuPagedAttention
from motet.attention.paged import PagedAttention
from motet.ops.cpu import is_available, library
from motet.ops.cpu.attention import paged_attention, write_kv
from motet.ops.cpu.target import Target
from motet.ops.reference import attention as reference
from motet.tensors.forward import StepLayout, StepRows
from motet.tensors.states import PagedState
from tests.attention.test_cpu import EXTRAS, TOLERANCE, Setting, assert_close, equal_bits, run

pytestmark = pytest.mark.skipif(not is_available(), reason="installed without the C++ kernels")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BYTES = [torch.int8, torch.float8_e4m3fn]
ERRORS = {torch.int8: 0.01, torch.float8_e4m3fn: 0.05}


@pytest.fixture(params=library.supported_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(library, "_loaded", library._kernels.Kernels(request.param))
    return str(request.param)


@pytest.fixture
def set_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def all_bytes(dtype: torch.dtype) -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def empty_caches(num_slots: int, num_heads: int, head_size: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """k, v, k_scale, v_scale."""
    return (
        *torch.zeros(2, num_slots, num_heads, head_size, dtype=dtype),
        *torch.full((2, num_slots, num_heads), -1.0),
    )


def known_nan(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), math.nan, x) if x.dtype is torch.float32 else x


def awkward(dtype: torch.dtype, head_size: int) -> Tensor:
    """[50, 3, head_size], from all magnitudes, with vectors of zeros, ties, NaN and infinities."""
    generator = torch.Generator().manual_seed(5)
    x = 100 * torch.randn(50, 3, head_size, generator=generator)
    x = x * torch.exp2(-20 * torch.rand(50, 3, head_size, generator=generator))
    x[0], x[1], x[2], x[3] = 0.0, 1e-35, 1e-6, -3e38 if dtype is not torch.float16 else -6e4
    x[4, 0, 0], x[5, 1, -1], x[6, 2, 0] = math.nan, math.inf, -math.inf
    ties = torch.arange(head_size) / 2
    x[7] = ties
    x[7, :, 0] = 127.0  # int8 stores these themselves
    x[8] = torch.exp2(-10.0 - torch.arange(head_size) % 3) * (torch.arange(head_size) % 16 + 1)
    x[8, :, 0] = 448.0  # and FP8 these, around its least
    x[9] = -0.0
    return x.to(dtype)


@pytest.mark.parametrize("head_size", [3, 16, 40, 80])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", BYTES)
def test_writing_equals_the_definition(cache_dtype: torch.dtype, dtype: torch.dtype, head_size: int, isa: str) -> None:
    x = awkward(dtype, head_size)
    slots = torch.randperm(60, generator=torch.Generator().manual_seed(6))[:50]
    found, expected = (empty_caches(60, 3, head_size, cache_dtype) for _ in range(2))
    write_kv(Target(), x, x.flip(0), *found[:2], slots, *found[2:])
    reference.write_kv(x, x.flip(0), *expected[:2], slots, *expected[2:])
    assert found[2].isnan().sum() == 3
    for one, two in zip(found, expected, strict=True):
        assert equal_bits(known_nan(one), known_nan(two))


def test_the_definition_rounds_as_it_says() -> None:
    x = torch.tensor([[[127.0, 0.5, 1.5, 2.5, -0.5, -126.4]]])
    stored, scale = reference.quantize_heads(x, torch.int8)
    assert stored.tolist() == [[[127, 0, 2, 2, 0, -126]]]
    assert scale.tolist() == [[1.0]]
    # Neighbours of 1 in FP8 are 1.125 and 0.9375; its least numbers are multiples of 2^-9.
    x = torch.tensor([[[-448.0, 1.0625, 1.1875, 17.0, 2.0**-10, 3 * 2.0**-10]]])
    stored, scale = reference.quantize_heads(x, torch.float8_e4m3fn)
    assert stored.float().tolist() == [[[-448.0, 1.0, 1.25, 16.0, 0.0, 2 * 2.0**-9]]]
    stored, scale = reference.quantize_heads(10 * x, torch.float8_e4m3fn)
    assert stored[0, 0, 0].item() == -448.0
    assert scale.item() == 10.0
    for bad in (math.nan, math.inf, -math.inf):
        stored, scale = reference.quantize_heads(torch.tensor([[[1.0, bad], [1.0, 2.0]]]), torch.int8)
        assert scale.isnan().tolist() == [[True, False]]
        assert stored[0, 0].tolist() == [0, 0]


@pytest.mark.parametrize("cache_dtype", BYTES)
def test_every_byte_is_read_as_torch_reads_it(cache_dtype: torch.dtype, isa: str) -> None:
    """One key: its value is the output."""
    caches = empty_caches(4, 1, 256, cache_dtype)
    rows = (
        CpuPagedAttention()
        .plan_step(StepRows(StepLayout.of([0], [1]), torch.tensor([[1]], dtype=torch.int32).numpy(), 2, None))
        .rows
    )
    caches[1][2, 0] = all_bytes(cache_dtype)
    for scale in (1.0, 0.3):
        caches[2][:], caches[3][:] = 1.0, scale
        out = paged_attention(Target(), torch.zeros(1, 1, 256), *caches[:2], rows, 1.0, None, None, None, *caches[2:])
        torch.testing.assert_close(out[0], all_bytes(cache_dtype).float() * scale, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("head_size", [16, 40, 64, 80, 200])
@pytest.mark.parametrize("cache_dtype", BYTES)
def test_attention_is_that_over_a_float32_cache_of_the_rounded_values(
    cache_dtype: torch.dtype, head_size: int, isa: str
) -> None:
    setting = Setting(head_size=head_size, dtype=torch.float32)
    q, k, v = (setting.values(70, heads, seed) for seed, heads in enumerate((6, 2, 2)))
    table = torch.tensor([[3, 1, 5, 2, 4]], dtype=torch.int32)
    plan = CpuPagedAttention().plan_step(StepRows(StepLayout.of([0], [70]), table.numpy(), 16, None))
    k_cache, v_cache, k_scale, v_scale = empty_caches(96, 2, head_size, cache_dtype)
    found = CpuPagedAttention().attend(q, k, v, PagedState(k_cache, v_cache, 0, k_scale, v_scale), plan, 0.3)
    rounded = [
        reference.read_kv(cache, scale, plan.slot_mapping) for cache, scale in ((k_cache, k_scale), (v_cache, v_scale))
    ]
    caches = torch.zeros(2, 96, 2, head_size)
    expected = CpuPagedAttention().attend(q, *rounded, PagedState(caches[0], caches[1], 0), plan, 0.3)
    assert equal_bits(found, expected)


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cache_dtype", BYTES)
def test_equals_the_reference(cache_dtype: torch.dtype, dtype: torch.dtype, extras: Setting) -> None:
    setting = replace(extras, head_size=80, dtype=dtype, cache_dtype=cache_dtype)
    lengths = [270, 1, 33]
    assert_close(run(setting, lengths), run(setting, lengths, PagedAttention()), TOLERANCE[dtype])


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("cache_dtype", BYTES)
def test_chunks_mates_blocks_and_threads_do_not_change_a_bit(
    cache_dtype: torch.dtype, extras: Setting, set_threads: None
) -> None:
    setting = replace(extras, head_size=40, cache_dtype=cache_dtype)
    (whole,) = run(setting, [300])
    for num_threads, chunk in ((1, 1), (1, 7), (2, 64), (3, 300)):
        torch.set_num_threads(num_threads)
        assert equal_bits(run(setting, [300, 1, 301], chunk=chunk, block_size=3, seed=2)[0], whole)


@pytest.mark.parametrize("cache_dtype", BYTES)
def test_what_is_not_visible_is_not_read(cache_dtype: torch.dtype) -> None:
    setting = Setting(cache_dtype=cache_dtype, window=37)
    for one, two in zip(run(setting, [70, 20], chunk=13, fill=math.nan), run(setting, [70, 20], chunk=13), strict=True):
        assert equal_bits(one, two)


@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("cache_dtype", BYTES)
def test_outputs_are_close_to_those_over_a_float32_cache(cache_dtype: torch.dtype, head_size: int) -> None:
    """Random normal q, k and v, 300 tokens: the error of an output vector relative to its length, on average.

    Bound: 1% for int8 (measured: 0.8 and 0.9%), 5% for FP8 (3.4 and 3.5%); of any vector twice as much (1.6%, 7.6%).
    """
    (exact,) = run(Setting(head_size=head_size), [300])
    (found,) = run(Setting(head_size=head_size, cache_dtype=cache_dtype), [300])
    vectors = (-1, 6, head_size)
    error = (found - exact).view(vectors).norm(dim=2) / exact.view(vectors).norm(dim=2)
    assert 0 < error.mean() < ERRORS[cache_dtype]
    assert error.max() < 2 * ERRORS[cache_dtype]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_scale": None}, "int8 needs k_scale"),
        ({"v_scale": torch.zeros(16, 2, dtype=torch.float64)}, r"v_scale must be contiguous float32 \[16, 2\]"),
        ({"v_scale": torch.zeros(16, 1)}, r"v_scale must be contiguous float32 \[16, 2\], got torch.float32 \[16, 1\]"),
        ({"k_scale": torch.zeros(2, 16).t()}, "k_scale must be contiguous"),
        ({"v": torch.zeros(16, 2, 8, dtype=torch.float8_e4m3fn)}, "caches must be alike"),
        ({"k": torch.zeros(16, 2, 8).to(torch.float8_e5m2)}, "caches must be alike"),
    ],
)
def test_scales_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    k, v, k_scale, v_scale = empty_caches(16, 2, 8, torch.int8)
    state = replace(PagedState(k, v, 0, k_scale, v_scale), **change)
    plan = CpuPagedAttention().plan_step(
        StepRows(StepLayout.of([0], [4]), torch.tensor([[3]], dtype=torch.int32).numpy(), 4, None)
    )
    with pytest.raises(ValueError, match=message):
        CpuPagedAttention().attend(*torch.zeros(3, 4, 2, 8), state, plan, 0.2)
