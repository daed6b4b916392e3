"""Motet: an inference engine for language models. The public names below are imported when first used."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Read by OpenMP when torch is imported. By default its threads spin for milliseconds at a barrier, and where another
# process wants a core, a step takes a hundred times longer; so they spin for some microseconds, and then sleep.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

if TYPE_CHECKING:
    from motet import errors as errors
    from motet.core.config import EngineArgs
    from motet.core.lora import LoRARequest
    from motet.core.outputs import CompletionOutput, Logprob, RequestOutput
    from motet.core.params import RequestOutputKind, SamplingParams
    from motet.core.structured import StructuredOutputsParams
    from motet.engine.async_llm import AsyncLLM
    from motet.engine.llm import LLM

_HOMES = {
    "LLM": "motet.engine.llm",
    "AsyncLLM": "motet.engine.async_llm",
    "LoRARequest": "motet.core.lora",
    "SamplingParams": "motet.core.params",
    "RequestOutputKind": "motet.core.params",
    "StructuredOutputsParams": "motet.core.structured",
    "RequestOutput": "motet.core.outputs",
    "CompletionOutput": "motet.core.outputs",
    "Logprob": "motet.core.outputs",
    "EngineArgs": "motet.core.config",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineArgs",
    "LoRARequest",
    "Logprob",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("motet.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'motet' has no attribute {name!r}")
    value = vars(import_module(_HOMES[name]))[name]
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
