"""`motet env`."""

from __future__ import annotations

import json
import os

import pytest

from motet import __version__
from motet.runner.threads import default_threads
from tests.cli.conftest import RunCommand


def test_report(motet: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_SOMETHING", "5")
    monkeypatch.setenv("HF_TOKEN", "secret")
    done = motet("env", "--json")
    report = json.loads(done.out)
    assert report["versions"]["motet"] == __version__
    assert report["versions"]["torch"]
    assert report["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert report["cpu"]["threads"] == str(default_threads())
    assert report["kernels"]["in_use"]
    assert 0 < report["memory"]["available_bytes"] <= report["memory"]["total_bytes"]
    assert report["variables"]["MOTET_SOMETHING"] == "5"
    assert "secret" not in done.out


def test_table_shows_all_sections(motet: RunCommand) -> None:
    out = motet("env").out
    for title in ("Versions", "System", "CPU", "Kernels", "Memory"):
        assert f"\n{title}\n" in "\n" + out
    assert "GiB" in out
