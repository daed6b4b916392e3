"""Prints the line budgets and fails when one is exceeded: small files and functions, a small engine.

Run from the root of a checkout. A budget is met by a better mechanism, never by denser lines. For the same reason the
engine's counts code alone: an explanation, or air between two thoughts, costs nothing.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("motet", "csrc", "tests", "tools", "bench")
SUFFIXES = {".py", ".pyi", ".cpp", ".h"}
MAX_FILE_LINES = 500
MAX_MODEL_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_ENGINE_LINES = 20_000  # of code, motet/ and csrc/ without motet/models/
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def source_files(root: Path) -> Iterator[Path]:
    """Paths relative to `root`, in order."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path.relative_to(root)


def long_functions(source: str) -> Iterator[tuple[str, int]]:
    """Names and line counts of functions over the budget, the signature and docstring included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > MAX_FUNCTION_LINES:
                yield node.name, num_lines


def num_code_lines(path: Path, source: str) -> int:
    """Without blank lines, comments on lines of their own, and docstrings."""
    if path.suffix not in (".py", ".pyi"):
        return sum(bool(line.strip()) and not line.lstrip().startswith("//") for line in source.splitlines())
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = next(iter(node.body), None)
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def is_model(path: Path) -> bool:
    return path.parts[:2] == ("motet", "models")


def problems_of(path: Path, source: str) -> Iterator[str]:
    max_lines = MAX_MODEL_FILE_LINES if is_model(path) else MAX_FILE_LINES
    num_lines = len(source.splitlines())
    if num_lines > max_lines:
        yield f"{path}: {num_lines} lines, at most {max_lines}"
    if path.suffix == ".py":
        for name, length in long_functions(source):
            yield f"{path}: function {name} has {length} lines, at most {MAX_FUNCTION_LINES}"


def main(root: Path) -> int:
    totals: dict[str, tuple[int, int]] = {}
    problems: list[str] = []
    engine_lines, lines_in_all = 0, 0
    for path in source_files(root):
        source = (root / path).read_text(encoding="utf-8")
        num_lines = len(source.splitlines())
        folder = "/".join(path.parts[:-1][:2]) or "."
        files, lines = totals.get(folder, (0, 0))
        totals[folder] = (files + 1, lines + num_lines)
        if path.parts[0] in ("motet", "csrc") and not is_model(path):
            engine_lines += num_code_lines(path, source)
            lines_in_all += num_lines
        problems.extend(problems_of(path, source))
    if engine_lines > MAX_ENGINE_LINES:
        problems.append(f"motet/ and csrc/ without models/: {engine_lines} lines of code, at most {MAX_ENGINE_LINES}")

    print(f"{'folder':<24}{'files':>6}{'lines':>8}")
    for folder, (files, lines) in sorted(totals.items()):
        print(f"{folder:<24}{files:>6}{lines:>8}")
    print(f"motet/ and csrc/ without models/: {engine_lines} of {MAX_ENGINE_LINES} lines of code,")
    print(f"{lines_in_all} with comments, docstrings and blank lines")
    for problem in problems:
        print(f"over budget: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
