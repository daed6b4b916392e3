"""`motet bench`: the figures add up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.cli.bench import percentile
from motet.cli.startup import PHASES
from tests.cli.conftest import RunCommand


def test_throughput(motet: RunCommand, model: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    words = ("--num-prompts", "5", "--input-len", "7", "--output-len", "4", "--num-iters", "3", "--json", str(file))
    done = motet("bench", "throughput", *model, *words)
    assert done.status == 0
    results = json.loads(file.read_text())
    assert results["total_num_tokens"] == 5 * 11
    assert len(results["elapsed_times"]) == 3
    assert results["elapsed_time"] == sorted(results["elapsed_times"])[1]
    assert results["requests_per_second"] == pytest.approx(5 / results["elapsed_time"])
    assert results["output_tokens_per_second"] == pytest.approx(20 / results["elapsed_time"])
    assert f"{results['tokens_per_second']:.1f} in all" in done.out
    assert results["limits"]["share"] == pytest.approx(results["limits"]["floor_s"] / results["elapsed_time"])
    assert "GB/s" in done.out
    assert results["limits"]["precision"] == "float32"


def test_latency(motet: RunCommand, model: tuple[str, ...]) -> None:
    words = ("--batch-size", "2", "--input-len", "5", "--output-len", "3", "--num-iters", "4", "--json", "-")
    results = json.loads(motet("bench", "latency", *model, *words).out)
    assert len(results["latencies"]) == 4
    assert results["avg_latency"] == pytest.approx(sum(results["latencies"]) / 4)
    assert results["percentiles"]["50"] <= results["percentiles"]["99"] <= max(results["latencies"])
    assert 0 < results["first_token"]["mean"] < results["avg_latency"]


def test_startup_adds_up_the_phases(motet: RunCommand, model: tuple[str, ...]) -> None:
    done = motet("bench", "startup", *model, "--num-iters", "1", "--num-iters-warmup", "0", "--json", "-")
    assert done.status == 0, done.err
    (run,) = json.loads(done.out)["runs"]
    assert run["total"] == pytest.approx(sum(run[phase] for phase in PHASES), abs=0.05)
    assert min(run.values()) > 0


def test_startup_tells_why_the_process_failed(motet: RunCommand) -> None:
    done = motet("bench", "startup", "--model", "nosuch")
    assert done.status == 1
    assert done.err.startswith("error: model 'nosuch' is no folder")


def test_too_long_for_the_context(motet: RunCommand, model: tuple[str, ...]) -> None:
    done = motet("bench", "latency", *model, "--input-len", "200", "--output-len", "100")
    assert done.status == 1
    assert "300 tokens" in done.err
    assert "256" in done.err


def test_one_output_token(motet: RunCommand, model: tuple[str, ...]) -> None:
    done = motet("bench", "latency", *model, "--output-len", "1", "--num-iters", "1", "--num-iters-warmup", "0")
    assert done.status == 0
    assert "per output token" in done.out


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_step_names_every_part(motet: RunCommand, model: tuple[str, ...]) -> None:
    words = ("--batch-size", "3", "--input-len", "7", "--num-iters", "4", "--json", "-")
    done = motet("bench", "step", *model, *words)
    assert done.status == 0, done.err
    results = json.loads(done.out)
    assert list(results["us"]) == ["schedule", "gather", "run", "sample", "commit"]
    assert min(results["us"].values()) > 0
    assert results["step"] < 1e7
