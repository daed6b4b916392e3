"""The errors that Motet raises on purpose: the public address of motet.core.errors, imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motet.core.errors import (
        CapacityError,
        ConfigError,
        EngineDeadError,
        InputError,
        LoadError,
        MotetError,
        RequestError,
        UnsupportedError,
    )

__all__ = [
    "CapacityError",
    "ConfigError",
    "EngineDeadError",
    "InputError",
    "LoadError",
    "MotetError",
    "RequestError",
    "UnsupportedError",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'motet.errors' has no attribute {name!r}")
    return vars(import_module("motet.core.errors"))[name]


def __dir__() -> list[str]:
    return sorted(__all__)
