"""The budget check finds what is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import budgets


def write(root: Path, name: str, num_lines: int) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n" * num_lines)


@pytest.mark.parametrize(
    ("name", "num_lines", "status"),
    [
        ("motet/sched/pool.py", 500, 0),
        ("motet/sched/pool.py", 501, 1),
        ("motet/models/llama.py", 300, 0),
        ("motet/models/llama.py", 301, 1),
        ("tests/test_x.py", 501, 1),
        ("csrc/kernel.cpp", 501, 1),
        ("docs/page.md", 5000, 0),
    ],
)
def test_files(tmp_path: Path, name: str, num_lines: int, status: int) -> None:
    write(tmp_path, name, num_lines)
    assert budgets.main(tmp_path) == status


def test_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "motet" / "long.py"
    path.parent.mkdir()
    path.write_text("class A:\n    async def fits(self):\n" + "        x = 1\n" * 59)
    assert budgets.main(tmp_path) == 0
    path.write_text("class A:\n    async def is_long(self):\n" + "        x = 1\n" * 60)
    assert budgets.main(tmp_path) == 1
    assert "function is_long has 61 lines, at most 60" in capsys.readouterr().out


def test_the_engine_total_leaves_models_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(40):
        write(tmp_path, f"motet/runner/part{index}.py", 500)
    write(tmp_path, "motet/models/llama.py", 300)
    write(tmp_path, "tests/test_x.py", 500)
    assert budgets.main(tmp_path) == 0
    assert "20000 of 20000 lines of code" in capsys.readouterr().out
    write(tmp_path, "csrc/kernel.cpp", 1)
    assert budgets.main(tmp_path) == 1


def test_explanations_are_free() -> None:
    head = '"""Module."""\n\n\ndef f(x):  # why\n    """What.\n\n    More.\n    """\n'
    python = head + '    # because\n    text = """a\nb"""\n    return x\n'
    assert budgets.num_code_lines(Path("a.py"), python) == 4
    assert budgets.num_code_lines(Path("a.cpp"), "// What.\n\nint x = 1;  // why\n    // because\n}\n") == 2
