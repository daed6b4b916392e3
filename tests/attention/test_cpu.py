"""The attention kernels agree with the reference, and a query's bits depend on nothing but what it sees."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from motet.attention.cpu import CpuPagedAttention
from motet.attention.paged import PagedAttention
from motet.attention.protocol import AttentionBackend
from motet.ops.cpu import is_available, library
from motet.ops.cpu.attention import write_kv
from motet.ops.cpu.target import Target
from motet.ops.reference import attention as reference
from motet.tensors.forward import StepLayout, StepRows
from motet.tensors.states import PagedState

pytestmark = pytest.mark.skipif(not is_available(), reason="installed without the C++ kernels")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Setting:
    num_heads: int = 6
    num_kv_heads: int = 2
    head_size: int = 64
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype = torch.float32
    window: int | None = None
    soft_cap: float | None = None
    has_alibi: bool = False
    has_sinks: bool = False

    def values(self, length: int, num_heads: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(length, num_heads, self.head_size, generator=generator).to(self.dtype)


EXTRAS = [
    Setting(),
    Setting(window=1),
    Setting(window=37),
    Setting(soft_cap=2.0),
    Setting(has_alibi=True),
    Setting(has_sinks=True),
    Setting(window=50, soft_cap=3.0, has_alibi=True, has_sinks=True),
]


def new_state(num_slots: int, setting: Setting, fill: float) -> PagedState:
    """Caches full of `fill`; those that have scales are full of ones, times `fill`."""
    shape = (2, num_slots, setting.num_kv_heads)
    if setting.cache_dtype in DTYPES:
        k, v = torch.full((*shape, setting.head_size), fill).to(setting.cache_dtype)
        return PagedState(k, v, 0)
    k, v = torch.ones(*shape, setting.head_size).to(setting.cache_dtype)
    return PagedState(k, v, 0, *torch.full(shape, fill))


def run(
    setting: Setting,
    lengths: list[int],
    backend: AttentionBackend | None = None,
    chunk: int = 10_000,
    block_size: int = 16,
    seed: int = 0,
    fill: float = 0.0,
) -> list[Tensor]:
    """Sequence after sequence [length, Hq * D]; a step takes up to `chunk` tokens of each. Row i's values have seed i.

    Blocks are dealt at random (by `seed`); blocks that a window has left go back to the null block, and they, like the
    rest of the cache, hold `fill`.
    """
    backend = backend or CpuPagedAttention()
    q = [setting.values(length, setting.num_heads, 10 * row) for row, length in enumerate(lengths)]
    k = [setting.values(length, setting.num_kv_heads, 10 * row + 1) for row, length in enumerate(lengths)]
    v = [setting.values(length, setting.num_kv_heads, 10 * row + 2) for row, length in enumerate(lengths)]
    needed = [-(-length // block_size) for length in lengths]
    blocks = list(range(1, sum(needed) + 3))
    random.Random(seed).shuffle(blocks)
    table = torch.zeros(len(lengths), max(needed), dtype=torch.int32)
    for row, count in enumerate(needed):
        table[row, :count] = torch.tensor([blocks.pop() for _ in range(count)])
    state = new_state((sum(needed) + 3) * block_size, setting, fill)
    slopes = torch.rand(setting.num_heads, generator=torch.Generator().manual_seed(3)) if setting.has_alibi else None
    sinks = torch.randn(setting.num_heads, generator=torch.Generator().manual_seed(4)) if setting.has_sinks else None
    outs: list[list[Tensor]] = [[] for _ in lengths]
    for start in range(0, max(lengths), chunk):
        rows = [row for row, length in enumerate(lengths) if length > start]
        stops = [min(lengths[row], start + chunk) for row in rows]
        step_table = table[rows]
        if setting.window is not None:
            step_table[:, : max(0, start - setting.window + 1) // block_size] = 0
        plan = backend.plan_step(
            StepRows(
                StepLayout.of([start] * len(rows), [stop - start for stop in stops]),
                step_table.numpy(),
                block_size,
                setting.window,
            )
        )
        parts = (torch.cat([x[row][start:stop] for row, stop in zip(rows, stops, strict=True)]) for x in (q, k, v))
        out = backend.attend(*parts, state, plan, setting.head_size**-0.5, setting.soft_cap, slopes, sinks)
        for row, part in zip(rows, out.split([stop - start for stop in stops]), strict=True):
            outs[row].append(part)
    return [torch.cat(parts) for parts in outs]


def equal_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype is other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.fixture
def set_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("head_size", [16, 24, 40, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_reference(dtype: torch.dtype, head_size: int, extras: Setting) -> None:
    setting = replace(extras, head_size=head_size, dtype=dtype, cache_dtype=dtype)
    lengths = [70, 1, 33]
    assert_close(run(setting, lengths), run(setting, lengths, PagedAttention()), TOLERANCE[dtype])


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (9, 3), (7, 1), (71, 1), (100, 2)])
@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_equals_the_reference_for_any_grouping_and_block_size(block_size: int, heads: tuple[int, int]) -> None:
    setting = Setting(*heads, head_size=48, has_sinks=True, has_alibi=True)
    lengths = [41, 90, 2]
    found = run(setting, lengths, block_size=block_size, chunk=29)
    assert_close(found, run(setting, lengths, PagedAttention(), block_size=block_size, chunk=29), 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", DTYPES)
def test_equals_the_reference_for_any_pair_of_dtypes(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    setting = Setting(head_size=40, dtype=dtype, cache_dtype=cache_dtype)
    assert_close(run(setting, [50]), run(setting, [50], PagedAttention()), TOLERANCE[dtype])


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("head_size", [1, 512])
def test_equals_the_reference_over_many_splits(head_size: int, extras: Setting) -> None:
    setting = replace(extras, num_heads=2, num_kv_heads=1, head_size=head_size)
    found = run(setting, [700, 300], chunk=350)
    assert_close(found, run(setting, [700, 300], PagedAttention(), chunk=350), 2e-5)


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_mates_and_blocks_do_not_change_a_bit(dtype: torch.dtype, extras: Setting) -> None:
    setting = replace(extras, head_size=40, dtype=dtype, cache_dtype=dtype)
    (whole,) = run(setting, [300])
    for chunk in (1, 3, 7, 64):
        assert equal_bits(run(setting, [300], chunk=chunk)[0], whole)
        assert equal_bits(run(setting, [300, 1, 280, 301, 17], chunk=chunk)[0], whole)
    for block_size in (1, 3, 16, 32, 512):
        for seed in (1, 2):
            assert equal_bits(run(setting, [300, 5], block_size=block_size, seed=seed)[0], whole)


@pytest.mark.parametrize("heads", [(1, 1), (8, 8), (9, 3), (71, 1)])
def test_chunks_do_not_change_a_bit_for_any_grouping(heads: tuple[int, int]) -> None:
    setting = Setting(*heads, head_size=64)
    (whole,) = run(setting, [290])
    for chunk in (1, 50):
        assert equal_bits(run(setting, [290, 40], chunk=chunk)[0], whole)


@pytest.mark.parametrize("extras", EXTRAS)
def test_threads_do_not_change_a_bit(extras: Setting, set_threads: None) -> None:
    """At the end, single tokens over 700 keys are enough work for a team that shares one row's splits."""
    outputs = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        outputs.append(run(extras, [700, 690], chunk=345))
        outputs.append(run(extras, [700, 690], chunk=23))
    for other in outputs[1:]:
        assert all(equal_bits(one, two) for one, two in zip(outputs[0], other, strict=True))


def test_threads_share_the_splits_of_one_token(set_threads: None) -> None:
    setting = Setting(head_size=128, has_sinks=True)
    outputs = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        outputs.append(run(setting, [801], chunk=800)[0])
    assert equal_bits(*outputs)


@pytest.mark.parametrize("extras", [Setting(), Setting(has_sinks=True, has_alibi=True)])
def test_a_window_over_everything_is_no_window(extras: Setting) -> None:
    (without,) = run(extras, [330])
    for window in (330, 331, 10_000):
        assert equal_bits(run(replace(extras, window=window), [330])[0], without)
    (narrow,) = run(replace(extras, window=100), [330])
    assert equal_bits(narrow[:100], without[:100])
    assert not torch.equal(narrow[100:], without[100:])


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_instruction_sets_do_not_change_a_bit(
    dtype: torch.dtype, extras: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []
    for isa in library.supported_isas():
        if isa == "avx512_bf16" and dtype is torch.bfloat16:
            continue  # it multiplies pairs of bfloat16
        monkeypatch.setattr(library, "_loaded", library._kernels.Kernels(isa))
        for head_size in (40, 64):
            setting = replace(extras, head_size=head_size, dtype=dtype, cache_dtype=dtype)
            outputs.append(run(setting, [70, 5])[0])
    for index, other in enumerate(outputs[2:]):
        assert equal_bits(outputs[index % 2], other)


@pytest.mark.parametrize("extras", EXTRAS)
def test_what_is_not_visible_is_not_read(extras: Setting) -> None:
    """NaN all over the cache, also in the null block and in the slots of tokens to come."""
    for chunk in (1, 13):
        clean = run(extras, [70, 20], chunk=chunk)
        for one, two in zip(run(extras, [70, 20], chunk=chunk, fill=math.nan), clean, strict=True):
            assert equal_bits(one, two)


def test_a_nan_stays_with_the_queries_that_see_it() -> None:
    """Poisons one key, in the middle of a tile."""
    q, k, v = (torch.randn(1, 60, 2, 32, generator=torch.Generator().manual_seed(1)) for _ in range(3))
    outs = []
    for poison in (None, 25):
        key, value = k[0].clone(), v[0].clone()
        if poison is not None:
            key[poison], value[poison] = math.nan, math.nan
        caches = torch.zeros(2, 80, 2, 32)
        plan = CpuPagedAttention().plan_step(
            StepRows(StepLayout.of([0], [60]), torch.tensor([[2, 1, 3, 4]], dtype=torch.int32).numpy(), 16, window=10)
        )
        state = PagedState(caches[0], caches[1], 0)
        outs.append(CpuPagedAttention().attend(q[0], key, value, state, plan, 0.2))
    clean, poisoned = outs
    assert equal_bits(clean[:25], poisoned[:25])
    assert poisoned[25:35].isnan().all()
    assert equal_bits(clean[35:], poisoned[35:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_a_fused_projection(dtype: torch.dtype) -> None:
    fused = torch.randn(9, 8 * 24, generator=torch.Generator().manual_seed(2)).to(dtype)
    q, k, v = (part.unflatten(1, (-1, 24)) for part in fused.split([4 * 24, 2 * 24, 2 * 24], dim=1))
    columns = [x.permute(2, 0, 1).contiguous().permute(1, 2, 0) for x in (q, k, v)]
    assert not q.is_contiguous()
    assert columns[0].stride(2) != 1
    plan = CpuPagedAttention().plan_step(
        StepRows(StepLayout.of([0], [9]), torch.tensor([[1, 2, 3]], dtype=torch.int32).numpy(), 4, None)
    )
    outs = []
    for parts in ([q, k, v], [q.contiguous(), k.contiguous(), v.contiguous()], columns):
        caches = torch.zeros(2, 16, 2, 24, dtype=dtype)
        outs.append(CpuPagedAttention().attend(*parts, PagedState(caches[0], caches[1], 0), plan, 0.2))
    assert equal_bits(outs[0], outs[1])
    assert equal_bits(outs[0], outs[2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", DTYPES)
@pytest.mark.parametrize("head_size", [3, 16, 40])
def test_write_kv_rounds_like_torch(dtype: torch.dtype, cache_dtype: torch.dtype, head_size: int) -> None:
    k, v = (100 * torch.randn(2, 50, 3, head_size, generator=torch.Generator().manual_seed(5))).to(dtype)
    k[0], v[1] = 1e-6, 3e38 if dtype is not torch.float16 else 6e4
    slots = torch.randperm(60, generator=torch.Generator().manual_seed(6))[:50]
    found, expected = torch.zeros(2, 2, 60, 3, head_size, dtype=cache_dtype)
    write_kv(Target(), k, v, found[0], found[1], slots)
    reference.write_kv(k, v, expected[0], expected[1], slots)
    assert equal_bits(found, expected)


def test_a_row_may_read_what_a_mate_writes_in_the_same_step() -> None:
    setting = Setting(head_size=32)
    q, k, v = (setting.values(8, heads, 7 + heads) for heads in (6, 2, 2))
    table = torch.tensor([[1, 2], [1, 3]], dtype=torch.int32)
    plan = CpuPagedAttention().plan_step(StepRows(StepLayout.of([0, 4], [8, 4]), table.numpy(), 4, None))
    caches = torch.full((2, 16, 2, 32), math.nan)
    parts = (torch.cat([x, x[4:]]) for x in (q, k, v))
    out = CpuPagedAttention().attend(*parts, PagedState(caches[0], caches[1], 0), plan, 0.2)
    assert equal_bits(out[8:], out[4:8])


def test_an_empty_step() -> None:
    plan = CpuPagedAttention().plan_step(
        StepRows(StepLayout.of([], []), torch.zeros(0, 4, dtype=torch.int32).numpy(), 16, None)
    )
    caches = torch.zeros(2, 16, 2, 32)
    q, k, v = torch.zeros(0, 6, 32), torch.zeros(0, 2, 32), torch.zeros(0, 2, 32)
    out = CpuPagedAttention().attend(q, k, v, PagedState(caches[0], caches[1], 0), plan, 0.2)
    assert list(out.shape) == [0, 192]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"q": torch.zeros(5, 6, 16)}, "q must be"),
        ({"q": torch.zeros(4, 5, 16)}, "multiple of 2"),
        ({"q": torch.zeros(4, 6, 16, dtype=torch.float64)}, "q must be float32"),
        ({"k": torch.zeros(4, 2, 15)}, "k must be"),
        ({"k": torch.zeros(4, 3, 16)}, "the caches' 2 heads"),
        ({"v": torch.zeros(4, 2, 16, dtype=torch.float16)}, "v must be"),
        ({"caches": torch.zeros(2, 12, 2, 16)}, "4 blocks"),
        ({"caches": torch.zeros(2, 16, 2, 16, dtype=torch.float64)}, "caches must be float32"),
        ({"caches": torch.zeros(2, 16, 2, 16, dtype=torch.int8)}, "int8 needs k_scale"),
        ({"caches": torch.zeros(2, 2, 16, 16).transpose(1, 2)}, "contiguous"),
        ({"alibi_slopes": torch.zeros(5)}, "alibi_slopes must be"),
        ({"sinks": torch.zeros(6, dtype=torch.float64)}, "sinks must be"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Tensor], message: str) -> None:
    plan = CpuPagedAttention().plan_step(
        StepRows(StepLayout.of([0], [4]), torch.tensor([[3]], dtype=torch.int32).numpy(), 4, None)
    )
    tensors = {
        "q": torch.zeros(4, 6, 16),
        "k": torch.zeros(4, 2, 16),
        "v": torch.zeros(4, 2, 16),
        "caches": torch.zeros(2, 16, 2, 16),
        **change,
    }
    state = PagedState(tensors["caches"][0], tensors["caches"][1], 0)
    with pytest.raises(ValueError, match=message):
        CpuPagedAttention().attend(
            tensors["q"],
            tensors["k"],
            tensors["v"],
            state,
            plan,
            0.2,
            None,
            change.get("alibi_slopes"),
            change.get("sinks"),
        )


@pytest.mark.parametrize(
    "starts, num_tokens, table, message",
    [
        ([4], [5], [[1, 2]], "1 rows of 3 blocks"),
        ([0, 0], [1, 1], [[1, 2]], "2 rows"),
        ([0], [8], [[1, -1]], "negative"),
        ([0, 0], [1, 0], [[1], [2]], "needs a token"),
    ],
)
def test_plans_that_no_kernel_could_follow_are_refused(
    starts: list[int], num_tokens: list[int], table: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CpuPagedAttention().plan_step(StepRows(StepLayout.of(starts, num_tokens), np.array(table, np.int32), 4, None))
