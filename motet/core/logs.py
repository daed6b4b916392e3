"""The one logger. Level from MOTET_LOGGING_LEVEL (default INFO), to stderr, set up on first use."""

from __future__ import annotations

import logging
import os


def get_logger() -> logging.Logger:
    logger = logging.getLogger("motet")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s motet: %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(os.environ.get("MOTET_LOGGING_LEVEL", "INFO").upper())
        logger.propagate = False
    return logger
