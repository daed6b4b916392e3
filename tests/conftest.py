"""Fixtures of the whole suite."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import checkpoint

TinyCheckpoints = Callable[[str], tuple[Path, Any]]


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """Family ("Llama", see tests.checkpoints) -> folder with checkpoint and tokenizer, and the transformers model.

    Made once per session: do not write into the folder.
    """
    root = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda family: checkpoint(family, root))
