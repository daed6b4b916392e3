"""`motet env`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from motet import __version__
from motet.cli.env import cgroup_quota
from tests.cli.conftest import RunCommand


def test_report(motet: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_SOMETHING", "5")
    monkeypatch.setenv("HF_TOKEN", "secret")
    done = motet("env", "--json")
    report = json.loads(done.out)
    assert report["versions"]["motet"] == __version__
    assert report["versions"]["torch"]
    assert report["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert report["kernels"]["in_use"]
    assert 0 < report["memory"]["available_bytes"] <= report["memory"]["total_bytes"]
    assert report["variables"]["MOTET_SOMETHING"] == "5"
    assert "secret" not in done.out


def test_table_shows_all_sections(motet: RunCommand) -> None:
    out = motet("env").out
    for title in ("Versions", "System", "CPU", "Kernels", "Memory"):
        assert f"\n{title}\n" in "\n" + out
    assert "GiB" in out


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cgroup_quota(tmp_path) == expected
