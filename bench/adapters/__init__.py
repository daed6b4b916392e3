"""One module per engine; each has a class `Engine` (see run_one.py)."""

from __future__ import annotations
