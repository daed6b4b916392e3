"""The progress bar counts requests and tokens, on stderr."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from motet import LLM
from motet.engine.progress import RequestProgress
from tests.engine.driver import greedy


def test_the_bar_ends_at_all_requests_with_the_speed(capsys: pytest.CaptureFixture[str]) -> None:
    with RequestProgress(3) as advance:
        for _ in range(3):
            advance(100, 10)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "3/3" in shown.err
    assert "output tok/s" in shown.err


@pytest.mark.parametrize(
    ("is_terminal", "use_tqdm", "is_shown"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_generate_shows_a_bar_on_a_terminal_unless_told_not_to(
    tiny_checkpoints: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
    use_tqdm: bool,
    is_shown: bool,
) -> None:
    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "max_model_len": 32, "kv_cache_memory_bytes": 1 << 20}
    llm = LLM(str(tiny_checkpoints("Llama")[0]), **options)
    capsys.readouterr()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    llm.generate([[5], [6]], greedy(max_tokens=2), use_tqdm=use_tqdm)
    assert ("2/2" in capsys.readouterr().err) == is_shown
