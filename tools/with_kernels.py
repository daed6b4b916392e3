"""Runs pytest on kernels from a build folder instead of the installed ones.

python tools/with_kernels.py BUILD_DIR [pytest arguments]
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  before the kernels, for its OpenMP runtime

import motet


def use_kernels(folder: Path) -> None:
    """Make `import motet._kernels` find the module in `folder`."""
    (file,) = folder.glob("_kernels*.so")
    spec = importlib.util.spec_from_file_location("motet._kernels", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["motet._kernels"] = motet._kernels = module


if __name__ == "__main__":
    use_kernels(Path(sys.argv[1]))
    sys.exit(pytest.main(sys.argv[2:]))
