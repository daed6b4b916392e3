"""From a machine's memory to block counts."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.core.config import CacheConfig, EngineArgs, SchedulerConfig
from motet.core.errors import CapacityError
from motet.core.state import Capacity, StateGroup
from motet.runner.memory import (
    activation_bytes,
    available_bytes,
    check_budget,
    check_fits,
    describe_capacity,
    inner_width,
    plan_capacity,
)

MIB = 2**20
FULL = StateGroup(None, ("a",), bytes_per_token=100)
WINDOW = StateGroup(16, ("b", "c"), bytes_per_token=300)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1000 MiB to spare."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000 * MIB))


def write(folder: Path, **files: object) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_without_a_cgroup_the_machine_counts(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == 1000 * MIB


def test_cgroup_version_2(tmp_path: Path) -> None:
    write(tmp_path, memory__max=600 * MIB, memory__current=500 * MIB)
    assert available_bytes(tmp_path) == 100 * MIB
    write(tmp_path, memory__stat=f"anon {400 * MIB}\ninactive_file {90 * MIB}\nslab 5")
    assert available_bytes(tmp_path) == 190 * MIB, "page cache is given back when it is asked for"
    write(tmp_path, memory__max="max")
    assert available_bytes(tmp_path) == 1000 * MIB


def test_cgroup_version_1(tmp_path: Path) -> None:
    files: dict[str, Any] = {"memory__limit_in_bytes": 700 * MIB, "memory__usage_in_bytes": 300 * MIB}
    write(tmp_path / "memory", **files, memory__stat=f"inactive_file 7\ntotal_inactive_file {50 * MIB}")
    assert available_bytes(tmp_path) == 450 * MIB
    write(tmp_path / "memory", memory__limit_in_bytes=9223372036854771712)  # how version 1 says "no limit"
    assert available_bytes(tmp_path) == 1000 * MIB


@pytest.mark.parametrize("content", ["", "lots", "-1.5"])
def test_unreadable_files_are_no_limit(tmp_path: Path, content: str) -> None:
    write(tmp_path, memory__max=content, memory__current=MIB, memory__stat=content)
    assert available_bytes(tmp_path) == 1000 * MIB


def test_there_is_never_less_than_nothing(tmp_path: Path) -> None:
    write(tmp_path, memory__max=100, memory__current=5000)
    assert available_bytes(tmp_path) == 0


def configs(**options: Any) -> tuple[CacheConfig, SchedulerConfig]:
    config = EngineArgs.from_options({"model": "somewhere", "block_size": 4, "max_num_seqs": 8, **options}).resolve()
    return config.cache, config.scheduler


def num_bytes(capacity: Capacity, groups: tuple[StateGroup, ...]) -> int:
    blocks = zip(capacity.num_blocks, groups, strict=True)
    return sum((count - 1) * capacity.block_size * group.bytes_per_token for count, group in blocks)


@given(budget=st.integers(1, 10**7), max_model_len=st.integers(2, 500), chunk=st.integers(1, 600))
def test_the_budget_is_kept_and_split_so_that_all_groups_run_out_together(
    budget: int, max_model_len: int, chunk: int
) -> None:
    cache, scheduler = configs(max_num_batched_tokens=chunk)
    groups = (FULL, WINDOW)
    capacity = plan_capacity(cache, scheduler, groups, max_model_len, budget)
    assert num_bytes(capacity, groups) <= budget
    per_request = [group.blocks_needed(max_model_len, chunk, 4) for group in groups]
    held = [(count - 1) / each for count, each in zip(capacity.num_blocks, per_request, strict=True)]
    assert max(held) <= scheduler.max_num_seqs
    # Each is rounded down to whole blocks.
    slack = max(1 / each for each in per_request)
    assert max(held) - min(held) <= slack + 1e-9
    one_more = sum(group.bytes_per_token * 4 for group in groups)
    assert max(held) >= scheduler.max_num_seqs - slack or num_bytes(capacity, groups) > budget - one_more


def test_no_group_gets_more_than_all_requests_can_use() -> None:
    cache, scheduler = configs(max_num_batched_tokens=8)
    capacity = plan_capacity(cache, scheduler, (FULL, WINDOW), 100, 10**12)
    assert capacity == Capacity(4, (8 * 25 + 1, 8 * 7 + 1))


def test_an_override_holds_for_every_group() -> None:
    cache, scheduler = configs(num_blocks_override=9)
    assert plan_capacity(cache, scheduler, (FULL, WINDOW), 100, 1) == Capacity(4, (9, 9))


def test_more_than_there_is_cannot_be_asked_for() -> None:
    check_fits(Capacity(4, (11, 3)), (FULL, WINDOW), available=11 * 400 + 3 * 1200)
    with pytest.raises(
        CapacityError, match=r"takes 8.2 MiB, but only 7.0 MiB.*lower kv_cache_memory_bytes or num_blocks"
    ):
        check_fits(Capacity(4, (20_000, 500)), (FULL, WINDOW), available=7 * MIB)


@given(budget=st.integers(1, 10**5), max_model_len=st.integers(2, 300), chunk=st.integers(1, 40))
def test_a_budget_for_less_than_one_request_is_refused_with_what_would_do(
    budget: int, max_model_len: int, chunk: int
) -> None:
    cache, scheduler = configs(max_num_batched_tokens=chunk)
    groups = (FULL, WINDOW)

    def fits(length: int) -> bool:
        usable = [count - 1 for count in plan_capacity(cache, scheduler, groups, length, budget).num_blocks]
        return all(have >= group.blocks_needed(length, chunk, 4) for have, group in zip(usable, groups, strict=True))

    if fits(max_model_len):
        check_budget(cache, scheduler, groups, max_model_len, budget)
        return
    with pytest.raises(CapacityError, match=f"max_model_len={max_model_len} tokens.*raise kv_cache") as caught:
        check_budget(cache, scheduler, groups, max_model_len, budget)
    advice = re.search(r"at most (\d+)", str(caught.value))
    longest = int(advice[1]) if advice else 1
    assert not fits(longest + 1)
    assert longest == 1 or fits(longest)


def test_the_description_gives_tokens_and_bytes() -> None:
    line = describe_capacity(Capacity(16, (1025, 65)), (FULL, WINDOW))
    assert line == "full: 1024 blocks of 16 = 16384 tokens, 2 MiB; window16: 64 blocks of 16 = 1024 tokens, 0 MiB"


def test_more_tokens_rows_or_words_need_more() -> None:
    _, small = configs(max_num_batched_tokens=8)
    _, more_tokens = configs(max_num_batched_tokens=9)
    base = activation_bytes(small, 10, 20, 100)
    assert base == 8 * (4 * 10 + 3 * 20) * 4 + 8 * 100 * 16
    assert activation_bytes(more_tokens, 10, 20, 100) > base
    assert activation_bytes(small, 10, 20, 101) > base


def test_a_row_for_each_expert_of_a_token() -> None:
    assert inner_width({}, 30) == 120
    assert inner_width({"intermediate_size": 50}, 30) == 50
    mixture = {"intermediate_size": 50, "num_experts_per_tok": 4}
    assert inner_width(mixture, 30) == 4 * (50 + 10)
    assert inner_width({**mixture, "moe_intermediate_size": 20}, 30) == 4 * (20 + 10)
    assert inner_width({**mixture, "moe_intermediate_size": 1, "num_experts_per_tok": 1}, 30) == 50
