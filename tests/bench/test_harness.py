"""The benchmark harness: the work is the same for every engine, and its table says what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from compare import expand, merge, table  # noqa: E402
from workloads import CASES, END_ID, LOWEST_ID  # noqa: E402

ADAPTER = """
class Engine:
    def __init__(self, model, wrong="0"):
        self.wrong = int(wrong)
    def prepare(self, case):
        pass
    def generate(self, prompts, new_len):
        return [[1] * (new_len + self.wrong) for _ in prompts]
    def close(self):
        print("closed")
"""


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_prompts_are_fixed_and_new_in_each_repetition(case: Any) -> None:
    first, again, other = case.prompts(0), case.prompts(0), case.prompts(1)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert {len(prompt) for prompt in first} == {case.shared_len + case.own_len}
    assert len(first) == case.num_requests
    assert len({tuple(prompt[: case.shared_len]) for prompt in first}) == 1
    assert len({tuple(prompt) for prompt in first}) == case.num_requests
    assert all(LOWEST_ID <= token_id < END_ID for prompt in first for token_id in prompt)


def test_rates_count_what_the_case_is_about() -> None:
    assert CASES["decode"].rate(2.0) == 64
    assert CASES["prefill"].rate(2.0) == 512
    assert CASES["batch64"].rate(2.0) == 64 * 128 / 2


def case_result(rate: float, num_runs: int = 3) -> dict[str, Any]:
    return {"rate": rate, "spread": 0.1, "seconds": [1.0] * num_runs}


def test_table_has_ratios_within_one_model() -> None:
    results = {
        "a/base": {"cases": {"decode": case_result(10)}, "first_token_s": 1.0, "peak_rss_mib": 5},
        "a/new": {"cases": {"decode": case_result(25, num_runs=1)}, "first_token_s": 2.0, "peak_rss_mib": 6},
        "b/new": {"cases": {"decode": case_result(30)}, "first_token_s": 3.0, "peak_rss_mib": 7},
        "a/lost": {"error": "exit status 1, see a_lost.log", "cases": {}},
    }
    lines = table(results, "a/base").splitlines()
    assert lines[2] == "| a/base | 10.0 ±5% | - | - | - | 1.0 | 5 |"
    assert lines[3] == "| a/new | 25.0 (1 run) = 2.50x | - | - | - | 2.0 | 6 |"
    assert lines[4] == "| b/new | 30.0 ±5% | - | - | - | 3.0 | 7 |"
    assert lines[5].startswith("| a/lost | exit status 1")


def test_cases_that_were_not_measured_again_are_kept() -> None:
    old, new = {"cases": {"decode": 1, "prefill": 2}}, {"cases": {"decode": 3}}
    assert merge(old, new)["cases"] == {"decode": 3, "prefill": 2}
    assert merge(old, {"error": "x", "cases": {}})["cases"] == {}


def test_a_variable_that_is_not_set_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELS", "here")
    assert expand("$MODELS/x") == "here/x"
    with pytest.raises(SystemExit, match="NOT_SET_ANYWHERE"):
        expand("$NOT_SET_ANYWHERE/x")


@pytest.mark.parametrize("wrong", [0, 1])
def test_an_engine_is_run_and_its_answers_are_checked(tmp_path: Path, wrong: int) -> None:
    """Through compare.py and run_one.py, with an adapter that does nothing, found before the real ones."""
    harness = tmp_path / "bench"
    (harness / "adapters").mkdir(parents=True)
    for name in ("compare.py", "run_one.py", "workloads.py"):
        (harness / name).write_text((BENCH / name).read_text())
    (harness / "adapters" / "fake.py").write_text(ADAPTER)
    spec = {"name": "fake", "python": sys.executable, "adapter": "fake", "model": "m", "opts": {"wrong": str(wrong)}}
    (tmp_path / "specs.json").write_text(json.dumps([spec]))
    command = [sys.executable, str(harness / "compare.py"), "--spec", "specs.json", "--cases", "decode", "--reps", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())["fake"]
    assert "closed" in (tmp_path / "logs" / "fake.log").read_text()
    if wrong:
        assert "wrong length: [129]" in found["cases"]["decode"]["error"]
    else:
        assert len(found["cases"]["decode"]["seconds"]) == 2
        assert found["processes"] >= 1
