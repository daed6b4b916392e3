"""Engines of these tests check the invariants of the persistent batch in every step."""

from __future__ import annotations

import os

os.environ["MOTET_CHECK"] = "1"
