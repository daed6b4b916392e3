"""The op backend of plain CPUs: C++ kernels where there are any, torch for the rest."""

from __future__ import annotations

from motet.ops.backend import ReferenceOps
from motet.ops.cpu import norm
from motet.ops.cpu.library import is_available

__all__ = ["CpuOps", "is_available"]


class CpuOps(ReferenceOps):
    name = "cpu"

    rms_norm = staticmethod(norm.rms_norm)
