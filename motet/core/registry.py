"""A name -> object table whose entries are imported only when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from importlib import import_module
from typing import Generic, TypeVar

from motet.core.errors import UnsupportedError

T = TypeVar("T")


class LazyRegistry(Generic[T]):
    """Maps names to `"package.module:attribute"` targets.

    `kind` is the word used in errors ("architecture", "op backend").
    """

    def __init__(self, kind: str, targets: dict[str, str] | None = None) -> None:
        self.kind = kind
        self._targets = dict(targets or {})

    def register(self, name: str, target: str) -> None:
        self._targets[name] = target

    def __contains__(self, name: str) -> bool:
        return name in self._targets

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def get(self, name: str) -> T:
        """Import and return the target of `name`. Raises UnsupportedError for an unknown name."""
        if name not in self._targets:
            raise unsupported(self.kind, name, self._targets)
        module, _, attribute = self._targets[name].partition(":")
        target: T = vars(import_module(module))[attribute]
        return target


def unsupported(kind: str, name: str, known: Iterable[str]) -> UnsupportedError:
    """The error for an unknown name: with close matches, or all that there is."""
    known = sorted(known)
    close = get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"supported: {', '.join(known)}"
    return UnsupportedError(f"{kind} {name!r} is not supported; {hint}")
