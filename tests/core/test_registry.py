"""Names become objects only when they are asked for."""

from __future__ import annotations

import sys

import pytest

from motet.core.errors import UnsupportedError
from motet.core.registry import LazyRegistry


def test_an_entry_is_imported_when_asked_for() -> None:
    registry: LazyRegistry[object] = LazyRegistry("calendar", {"day": "calendar:weekday"})
    registry.register("missing", "no.such.module:thing")
    assert sorted(registry) == ["day", "missing"]
    assert "day" in registry
    assert registry.get("day") is sys.modules["calendar"].weekday  # type: ignore[attr-defined]
    with pytest.raises(ModuleNotFoundError):
        registry.get("missing")


def test_an_unknown_name_is_refused_with_close_ones_or_all() -> None:
    registry: LazyRegistry[object] = LazyRegistry("colour", {"green": "a:b", "red": "a:b"})
    with pytest.raises(UnsupportedError, match="colour 'gren' is not supported; did you mean green"):
        registry.get("gren")
    with pytest.raises(UnsupportedError, match="colour 'xyz' is not supported; supported: green, red"):
        registry.get("xyz")
