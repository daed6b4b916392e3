"""Every op with its definition, sample inputs, tolerance and backends.

The table is for tests and tools: `tests/ops/test_registry.py` compares each backend with the reference on each sample.
A step does not go through it; models call the functions of their backend directly.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch


@dataclass(frozen=True)
class Sample:
    """One set of positional arguments; `label` names it in a test's id."""

    label: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class OpSpec:
    """An op. `reference` is its definition; a backend takes the same arguments and returns the same structure.

    tolerance: dtype of an output -> (rtol, atol) that a backend's result may differ by.
    """

    name: str
    reference: Callable[..., Any]
    samples: Callable[[], Sequence[Sample]]
    tolerance: dict[torch.dtype, tuple[float, float]]
    backends: dict[str, Callable[..., Any]] = field(default_factory=dict)


_OPS: dict[str, OpSpec] = {}


def define_op(spec: OpSpec) -> OpSpec:
    """Called beside the op's reference. Raises ValueError for a name that is taken."""
    if spec.name in _OPS:
        raise ValueError(f"op {spec.name!r} is already defined")
    _OPS[spec.name] = spec
    return spec


def implement_op(spec: OpSpec, backend: str, function: Callable[..., Any]) -> None:
    """Called by a backend that can run on this machine. Raises ValueError for a second function of one backend."""
    if backend in spec.backends:
        raise ValueError(f"op {spec.name!r} already has a backend {backend!r}")
    spec.backends[backend] = function


def all_ops() -> tuple[OpSpec, ...]:
    """Import all definitions and backends, then return the ops in the order of their names."""
    reference = import_module("motet.ops.reference")
    for module in pkgutil.iter_modules(reference.__path__):
        import_module(f"{reference.__name__}.{module.name}")
    import_module("motet.ops.cpu")
    return tuple(_OPS[name] for name in sorted(_OPS))
