"""Adapters as PEFT writes them: adapter_config.json and adapter_model.safetensors.

What would change the answers and is not built (DoRA, adapters of embeddings, ...) is refused, and so is a tensor that
fits no module of the model: an adapter never has less effect than it says.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from motet.core.errors import LoadError, UnsupportedError
from motet.core.lora import LoRARequest
from motet.nn.lora import AdapterSite, LoraPair

CONFIG_FILE, WEIGHTS_FILE = FILES = ("adapter_config.json", "adapter_model.safetensors")
TENSOR_NAME = re.compile(r"^(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight$")
# Options that change what an adapter computes, with what they are.
REFUSED = {
    "use_dora": "DoRA",
    "modules_to_save": "fully trained modules (modules_to_save)",
    "lora_bias": "biases of the low-rank matrices (lora_bias)",
    "layer_replication": "repeated layers (layer_replication)",
    "trainable_token_indices": "trained embeddings of tokens (trainable_token_indices)",
    "target_parameters": "adapters of bare parameters, such as experts (target_parameters)",
    "use_qalora": "QA-LoRA (use_qalora)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "arrow_config": "Arrow routing (arrow_config)",
}
# These initialisations also change the base model's weights, which the adapter's files do not hold.
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
EMBEDDINGS = ("lm_head", "embed_tokens", "wte", "wpe", "word_embeddings")


class PeftConfig(msgspec.Struct, frozen=True):
    """The fields of adapter_config.json that are used; PEFT's defaults."""

    peft_type: str = "LORA"
    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    fan_in_fan_out: bool = False
    bias: str = "none"
    init_lora_weights: bool | str | None = True

    def rank_of(self, module: str) -> int:
        return _by_pattern(self.rank_pattern, module, self.r)

    def scale_of(self, module: str) -> float:
        """With rsLoRA (Kalajdzievski 2023) it falls with the root of the rank."""
        rank, alpha = self.rank_of(module), _by_pattern(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def targets(self, module: str) -> bool:
        """Whether every adapter of this config has tensors for the module."""
        if self.layers_to_transform is not None or _is_named(self.exclude_modules, module):
            return False
        return self.target_modules == "all-linear" or _is_named(self.target_modules, module)


def _by_pattern(pattern: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """The value of the first key that matches the end of the module's name."""
    return next((value for key, value in (pattern or {}).items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _is_named(names: list[str] | str | None, module: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names or ())


@dataclass(frozen=True, eq=False)
class Adapter:
    """key: digest of name and files. pairs: by module of the model, in the model's dtype."""

    name: str
    key: str
    pairs: dict[str, LoraPair]


def read_adapter(request: LoRARequest, sites: Mapping[str, AdapterSite], dtype: torch.dtype, max_rank: int) -> Adapter:
    """Read an adapter for the modules `sites`. Raises LoadError or UnsupportedError, which name the adapter."""
    folder = Path(request.lora_path).expanduser()
    what = f"adapter {request.lora_name!r} ({str(folder)!r})"
    files = [_read_file(folder, name, what) for name in FILES]
    try:
        values = msgspec.json.decode(files[0], type=dict[str, Any])
        config = msgspec.convert(values, PeftConfig)
        tensors = safetensors.torch.load(files[1])
        reader = AdapterReader(what, config, sites, max_rank)
        reader.refuse(values)
        pairs = reader.pairs(tensors, dtype)
    except (msgspec.MsgspecError, safetensors.SafetensorError, re.error) as error:
        raise LoadError(f"the files of {what} are damaged: {error}") from None
    return Adapter(request.lora_name, _digest(request.lora_name.encode(), *files), pairs)


def _read_file(folder: Path, name: str, what: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        others = ", ".join(sorted(path.name for path in folder.glob("adapter*"))) or "none"
        raise LoadError(
            f"{what}: {name} cannot be read ({error.strerror}); lora_path must be a folder with {' and '.join(FILES)} "
            f"as PEFT writes it (files like these there: {others})"
        ) from None


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@dataclass(frozen=True)
class AdapterReader:
    """Checks one adapter. `what`: its name in messages."""

    what: str
    config: PeftConfig
    sites: Mapping[str, AdapterSite]
    max_rank: int

    def refuse(self, values: Mapping[str, Any]) -> None:
        """Raises UnsupportedError for what the config asks for and is not built."""
        config = self.config
        found = [text for option, text in REFUSED.items() if values.get(option)]
        if config.peft_type != "LORA":
            found.append(f"the method {config.peft_type}")
        if config.bias != "none":
            found.append(f"trained biases (bias={config.bias!r})")
        if isinstance(config.init_lora_weights, str) and config.init_lora_weights.lower().startswith(CHANGES_BASE):
            found.append(f"a changed base model (init_lora_weights={config.init_lora_weights!r}; PEFT can convert it)")
        if config.fan_in_fan_out and not any(site.is_transposed for site in self.sites.values()):
            found.append("transposed matrices (fan_in_fan_out), which this model does not have")
        if found:
            raise UnsupportedError(f"{self.what} uses {', '.join(found)}, which is not supported")

    def pairs(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, LoraPair]:
        sides = self._sides(tensors)
        found = {module: self._pair(module, sides[module], dtype) for module in sides}
        missing = [name for name in self.sites if name not in found and self.config.targets(name)]
        if missing:
            raise LoadError(
                f"{self.what} targets {self.config.target_modules!r}, but has no tensors for {_shown(missing)}; it is "
                "incomplete, or was made for another model"
            )
        if not found:
            raise LoadError(f"{self.what} has no tensors")
        return found

    def _sides(self, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, tuple[str, Tensor]]]:
        """By module of the model and side: PEFT's name of the module, and the tensor."""
        sides: dict[str, dict[str, tuple[str, Tensor]]] = {}
        foreign = []
        for name, tensor in tensors.items():
            match = TENSOR_NAME.match(name)
            module = match["module"] if match else name
            site = module if module in self.sites else module.removeprefix("transformer.")
            if match is None or site not in self.sites:
                foreign.append(name)
            else:
                sides.setdefault(site, {})[match["side"]] = (module, tensor)
        if foreign:
            self._refuse_foreign(foreign)
        return sides

    def _refuse_foreign(self, names: list[str]) -> None:
        if any("lora_magnitude_vector" in name for name in names):
            raise UnsupportedError(f"{self.what} uses DoRA, which is not supported ({_shown(names)})")
        if any(part in EMBEDDINGS for name in names for part in name.split(".")):
            raise UnsupportedError(
                f"{self.what} changes embeddings or lm_head, which is not supported ({_shown(names)})"
            )
        raise LoadError(
            f"{self.what} has tensors for no linear layer of this model: {_shown(names)}; it was made for another "
            "model, or changes experts, which is not supported"
        )

    def _pair(self, site_name: str, sides: dict[str, tuple[str, Tensor]], dtype: torch.dtype) -> LoraPair:
        site = self.sites[site_name]
        for side in "AB":
            if side not in sides:
                raise LoadError(f"{self.what} has no lora_{side} for {site_name!r}")
        (module, a), (_, b) = sides["A"], sides["B"]
        rank = self.config.rank_of(module)
        wanted = ((rank, site.num_inputs), (site.num_outputs, rank))
        if (tuple(a.shape), tuple(b.shape)) != wanted:
            raise LoadError(
                f"{self.what}: lora_A and lora_B of {site_name!r} have shapes {list(a.shape)} and {list(b.shape)}, but "
                f"rank {rank} and the model ask for {list(wanted[0])} and {list(wanted[1])}"
            )
        if rank > self.max_rank:
            raise LoadError(
                f"{self.what} has rank {rank} in {site_name!r}, more than max_lora_rank={self.max_rank}; raise that "
                "engine option"
            )
        return LoraPair(a.to(dtype), b.to(dtype), self.config.scale_of(module))


def _shown(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:5]) + (f", ... ({len(found)} in all)" if len(found) > 5 else "")
