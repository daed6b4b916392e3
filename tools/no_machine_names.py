"""Fails when a file names a path of one machine or the host of a package registry: neither exists for the next reader.

Run from the root of a checkout.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PATTERNS = (
    re.compile(r"(?<![\w.}])/(?:home|root|work|Users|opt)/\w"),
    re.compile(r"\b(?:pypi|pythonhosted|npmjs|test\.pypi)\.(?:org|com)\b"),
    re.compile(r"\bdownload\.pytorch\."),
)


def tracked_files(root: Path) -> list[Path]:
    """Files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return [root / name for name in listed.stdout.split("\0") if name]


def findings(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines of one file; a binary file has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (UnicodeDecodeError, FileNotFoundError):
        return
    for number, line in enumerate(lines, start=1):
        if any(pattern.search(line) for pattern in PATTERNS):
            yield number, line.strip()


def main(root: Path) -> int:
    num_found = 0
    for path in tracked_files(root):
        for number, line in findings(path):
            num_found += 1
            print(f"{path.relative_to(root)}:{number}: {line[:100]}")
    return 1 if num_found else 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
