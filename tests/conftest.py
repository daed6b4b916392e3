"""Fixtures of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.checkpoints import checkpoint

# `make fuzz`: other examples each time, and as many as are asked for.
settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "300")),
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

TinyCheckpoints = Callable[[str], tuple[Path, Any]]


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """Family ("Llama", see tests.checkpoints) -> folder with checkpoint and tokenizer, and the transformers model.

    Made once per session: do not write into the folder.
    """
    root = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda family: checkpoint(family, root))
