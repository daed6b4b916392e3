"""Rotary position embedding: from a checkpoint's parameters to tables of cosines and sines.

Variants that change with the length of a sequence (dynamic, longrope) are fixed once, by the engine's max_model_len:
a token's bits must not depend on how long its request has become.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch
from torch import Tensor

from motet.core.errors import LoadError
from motet.core.registry import unsupported
from motet.nn.attention import RopeTable


class RopeParameters(msgspec.Struct, frozen=True, kw_only=True):
    """`rope_parameters` (or `rope_theta` and `rope_scaling`) of a checkpoint's config."""

    rope_theta: float = 10000.0
    rope_type: str = "default"
    partial_rotary_factor: float = 1.0
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: list[float] | None = None
    long_factor: list[float] | None = None
    freq_factors: list[float] | None = None  # GGUF's rope_freqs: divisors of the frequencies

    def __post_init__(self) -> None:
        for name in ("rope_theta", "factor", "original_max_position_embeddings", "attention_factor"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be greater than 0, got {value}")


def rope_parameters(config: dict[str, Any], default_theta: float = 10000.0) -> RopeParameters:
    """Read `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Where a config has both, `rope_scaling` decides: it can only come from an override. `partial_rotary_factor` and
    `original_max_position_embeddings` may also stand beside them; the latter is then the one that counts (Phi-3).
    """
    given = dict(config.get("rope_parameters") or {})
    if config.get("rope_scaling"):
        given = {key: given[key] for key in ("rope_theta", "partial_rotary_factor") if key in given}
        given.update(config["rope_scaling"])
    beside = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    merged = {**beside, **{key: value for key, value in given.items() if value is not None}}
    merged["rope_type"] = given.get("rope_type") or given.get("type") or "default"
    if config.get("original_max_position_embeddings") is not None:
        merged["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    merged = {"rope_theta": default_theta, **{key: value for key, value in merged.items() if value is not None}}
    try:
        return msgspec.convert(merged, RopeParameters, strict=False)
    except msgspec.ValidationError as error:
        raise LoadError(f"rope parameters of the config: {error}") from None


def _require(parameters: RopeParameters, name: str) -> Any:
    value = msgspec.structs.asdict(parameters)[name]
    if value is None:
        raise LoadError(f"rope type {parameters.rope_type!r} needs {name!r} in the config's rope parameters")
    return value


def _periods(theta: float, dim: int) -> Tensor:
    return theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _plain(theta: float, dim: int) -> Tensor:
    return 1.0 / _periods(theta, dim)


def _divisors(values: list[float], name: str, dim: int) -> Tensor:
    if len(values) != (dim + 1) // 2:
        raise LoadError(f"{name} of the rope parameters has {len(values)} values, but {(dim + 1) // 2} are needed")
    return torch.tensor(values, dtype=torch.float32)


def _default(p: RopeParameters, dim: int, max_len: int, trained_len: int) -> tuple[Tensor, float]:
    return _plain(p.rope_theta, dim), 1.0


def _linear(p: RopeParameters, dim: int, max_len: int, trained_len: int) -> tuple[Tensor, float]:
    """Position interpolation (Chen et al. 2023)."""
    return _plain(p.rope_theta, dim) / _require(p, "factor"), 1.0


def _dynamic(p: RopeParameters, dim: int, max_len: int, trained_len: int) -> tuple[Tensor, float]:
    """NTK-aware scaling of the base by the length."""
    factor, length = _require(p, "factor"), max(max_len, trained_len)
    theta = p.rope_theta * (factor * length / trained_len - (factor - 1)) ** (dim / (dim - 2))
    return _plain(theta, dim), 1.0


def _llama3(p: RopeParameters, dim: int, max_len: int, trained_len: int) -> tuple[Tensor, float]:
    """Llama 3.1: long wavelengths are slowed by `factor`, short ones kept, those between interpolated."""
    factor, original = _require(p, "factor"), p.original_max_position_embeddings or trained_len
    frequencies = _plain(p.rope_theta, dim)
    wavelengths = 2 * math.pi / frequencies
    blend = (original / wavelengths - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / factor + blend * frequencies, 1.0


def _yarn(p: RopeParameters, dim: int, max_len: int, trained_len: int) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023): interpolate by parts, and sharpen attention by a factor of its own."""
    original = p.original_max_position_embeddings or trained_len
    factor = p.factor if p.factor is not None else trained_len / original

    def sharpen(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(p.rope_theta))

    low, high = dimension_of(p.beta_fast or 32.0), dimension_of(p.beta_slow or 1.0)
    if p.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    kept = 1 - ramp.clamp(0, 1)
    periods = _periods(p.rope_theta, dim)
    mixed = 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept
    if p.attention_factor is not None:
        return mixed, p.attention_factor
    if p.mscale and p.mscale_all_dim:
        return mixed, sharpen(p.mscale) / sharpen(p.mscale_all_dim)
    return mixed, sharpen(1.0)


def _longrope(p: RopeParameters, dim: int, max_len: int, trained_len: int) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al. 2024): one divisor per dimension, another set of them beyond the original length."""
    original = p.original_max_position_embeddings or trained_len
    factor = p.factor if p.factor is not None else trained_len / original
    name = "long_factor" if max_len > original else "short_factor"
    divisors = _divisors(_require(p, name), name, dim)
    frequencies = 1.0 / (divisors * _periods(p.rope_theta, dim))
    if p.attention_factor is not None:
        return frequencies, p.attention_factor
    return frequencies, 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


VARIANTS = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}


def rope_table(parameters: RopeParameters, head_size: int, max_model_len: int, trained_len: int) -> RopeTable:
    """(cos, sin), each float32 [max_model_len, R / 2], R being the rotated part of the head.

    trained_len: the config's max_position_embeddings. The attention factor of yarn and longrope is in both tables.
    Raises UnsupportedError for an unknown type, LoadError for parameters that are missing or do not fit.
    """
    if parameters.rope_type not in VARIANTS:
        raise unsupported("rope type", parameters.rope_type, VARIANTS)
    dim = int(head_size * parameters.partial_rotary_factor)
    if not 2 <= dim + dim % 2 <= head_size:
        raise LoadError(f"rope cannot rotate {dim} of {head_size} dimensions per head; check the config's head sizes")
    frequencies, attention_factor = VARIANTS[parameters.rope_type](parameters, dim, max_model_len, trained_len)
    if parameters.freq_factors is not None:
        frequencies = frequencies / _divisors(parameters.freq_factors, "rope_freqs", dim)
    angles = torch.arange(max_model_len, dtype=torch.float32)[:, None] * frequencies
    return angles.cos() * attention_factor, angles.sin() * attention_factor
