"""Field types of structs that people construct by hand: msgspec checks them when it decodes, not in a constructor."""

from __future__ import annotations

import os
from functools import cache
from numbers import Integral, Real
from typing import Any

import msgspec

from motet.core.errors import MotetError


def settle_fields(struct: msgspec.Struct, error: type[MotetError]) -> None:
    """Give every field a value of its declared type: numpy's numbers become Python's, a tuple becomes a list.

    For `__post_init__`. Raises `error` with the name of the first field that has another type.
    """
    for name, kind in _fields(type(struct)):
        value = getattr(struct, name)
        try:
            plain = msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview), enc_hook=_plain)
            msgspec.structs.force_setattr(struct, name, msgspec.convert(plain, kind))
        except (msgspec.ValidationError, NotImplementedError, TypeError):
            wanted = type(struct).__annotations__[name]
            raise error(f"{name} must be {wanted}, got {_shown(value)}") from None


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in msgspec.structs.fields(kind) if field.type is not Any]


def _plain(value: object) -> object:
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise NotImplementedError


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
