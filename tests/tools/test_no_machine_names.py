"""The check for machine paths and registry hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import no_machine_names


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("cd /" + "home/me/motet", True),
        ("index = https://files.python" + "hosted.org/simple", True),
        ("see py" + "pi.org", True),
        ("open('/" + "root/x')", True),
        ("src/work/part.py and ./home/page", False),
        ("from PyPI, into {prefix}/opt/x", False),
    ],
)
def test_lines(tmp_path: Path, text: str, is_found: bool) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "page.md").write_text(f"first\n{text}\n")
    (tmp_path / "blob.bin").write_bytes(b"\xff\xfe" + text.encode())
    assert no_machine_names.main(tmp_path) == int(is_found)
