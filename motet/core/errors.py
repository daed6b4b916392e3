"""Every error that Motet raises on purpose.

Each message says what is wrong, with which value, and what to change. `motet.errors` re-exports this module.
"""

from __future__ import annotations


class MotetError(Exception):
    """Base class of all errors below."""


class ConfigError(MotetError, ValueError):
    """An engine option is unknown, has a wrong value, or contradicts another one."""


class UnsupportedError(ConfigError):
    """The option, parameter, architecture or file format is known but not supported; the message names it."""


class InputError(MotetError, ValueError):
    """One request's prompt or parameters cannot be served; no other request is affected."""


class LoadError(MotetError):
    """A model, tokenizer or template file is missing, damaged, foreign, or does not fit its architecture."""


class CapacityError(MotetError):
    """The memory at hand cannot hold the model or a single request of the configured length."""


class RequestError(MotetError, RuntimeError):
    """A running request ended with an error of its own (all tokens masked, non-finite logits, ...)."""


class EngineDeadError(MotetError, RuntimeError):
    """The engine stopped working; every open request gets this error."""
