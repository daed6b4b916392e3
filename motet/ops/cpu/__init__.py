"""Ops as C++ kernels (csrc/), for CPU tensors in dense buffers.

`is_available()` tells whether this installation has them; the functions raise UnsupportedError where it has not.
"""

from __future__ import annotations

from motet.ops.cpu.library import is_available, isa
from motet.ops.cpu.norm import add_rms_norm, rms_norm
from motet.ops.reference.norm import ADD_RMS_NORM, RMS_NORM
from motet.ops.registry import implement_op

__all__ = ["add_rms_norm", "is_available", "isa", "rms_norm"]

if is_available():
    implement_op(RMS_NORM, "cpu", rms_norm)
    implement_op(ADD_RMS_NORM, "cpu", add_rms_norm)
