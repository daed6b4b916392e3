"""Opening an engine for a command."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from motet.cli.flags import Given
from motet.core.config import EngineArgs

if TYPE_CHECKING:
    from motet.engine.engine import Engine


def open_engine(options: Given) -> Engine:
    """Load a model. Wrong options are refused before torch is imported.

    Raises ConfigError, LoadError, CapacityError.
    """
    config = EngineArgs.from_options(options).resolve()
    with collector_paused():
        return import_engine()(config)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Imports and loading make nearly a million objects and no garbage; looking for it costs a tenth of a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def import_engine() -> type[Engine]:
    """The engine's class, with all that it takes: a second or two.

    Log lines below WARNING are left out unless MOTET_LOGGING_LEVEL asks for them.
    """
    os.environ.setdefault("MOTET_LOGGING_LEVEL", "WARNING")
    from motet.engine.engine import Engine

    return Engine
