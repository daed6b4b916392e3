"""From a machine's cores, the affinity and the cgroup's quota to a number of threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from motet.runner import threads
from motet.runner.threads import ThreadCount, cgroup_quota, count_cores, default_threads


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


def topology(folder: Path, siblings: list[str]) -> Path:
    write(folder, {f"cpu{cpu}/topology/thread_siblings_list": text for cpu, text in enumerate(siblings)})
    return folder


@pytest.mark.parametrize(
    ("siblings", "cpus", "expected"),
    [
        (["0", "1"], {0, 1}, 2),
        (["0-1", "0-1", "2-3", "2-3"], range(4), 2),
        (["0,2", "1,3", "0,2", "1,3"], {0, 2}, 1),
        (["0,2", "1,3", "0,2", "1,3"], {1, 2}, 2),
        (["0-1", "0-1"], {0, 1, 5}, 2),  # one CPU of unknown siblings
        (["", ""], {0, 1}, 2),
        ([], {3, 4, 9}, 3),
    ],
)
def test_hardware_threads_of_one_core_count_once(
    tmp_path: Path, siblings: list[str], cpus: set[int], expected: int
) -> None:
    assert count_cores(cpus, topology(tmp_path, siblings)) == expected


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"cpu.max": "max 100000"}, "0::/", None),
        ({"cpu.max": "nonsense"}, "0::/", None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/", 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/", None),
        ({"cpu/cpu.cfs_quota_us": "400000"}, "4:cpu:/", None),
        ({}, "", None),
        # The strictest on the way counts, wherever it stands.
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 2.0),
        ({"a/cpu.max": "800000 100000", "a/b/cpu.max": "300000 100000"}, "0::/a/b", 3.0),
        ({"other/cpu.max": "100000 100000"}, "0::/a", None),
        ({"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, "9:pids:/b\n4:cpu:/a", 2.5),
        ({"cpu/b/cpu.cfs_quota_us": "250000", "cpu/b/cpu.cfs_period_us": "100000"}, "9:pids:/b\n4:cpu:/a", None),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], own: str, expected: float | None) -> None:
    root = tmp_path / "cgroup"
    write(root, files)
    write(tmp_path, {"own": own} if own else {})
    assert cgroup_quota(root, tmp_path / "own") == expected


@pytest.mark.parametrize(
    ("count", "num_threads", "text"),
    [
        (ThreadCount(2, 2, None), 2, "2 of 2 physical cores; quota none"),
        (ThreadCount(8, 4, None), 4, "4 of 8 physical cores; affinity allows 4; quota none"),
        (ThreadCount(8, 8, 3.9), 3, "3 of 8 physical cores; quota 3.9"),
        (ThreadCount(8, 8, 0.5), 1, "1 of 8 physical cores; quota 0.5"),
        (ThreadCount(8, 2, 6.0), 2, "2 of 8 physical cores; affinity allows 2; quota 6"),
    ],
)
def test_the_least_of_cores_and_quota(count: ThreadCount, num_threads: int, text: str) -> None:
    assert count.num_threads == num_threads
    assert str(count) == text


def test_this_process_follows_its_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cgroup_quota", lambda: None)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert default_threads().num_threads == 1
    finally:
        os.sched_setaffinity(0, before)
    assert default_threads().num_threads == count_cores(before)
