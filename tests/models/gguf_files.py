"""Writes GGUF files of tiny checkpoints, the way llama.cpp's converter does, with the `gguf` package."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import load_file, save_file

from motet.ops.reference.quantized import random_blocks

ARCHITECTURES = {
    "Llama": gguf.MODEL_ARCH.LLAMA,
    "Qwen2": gguf.MODEL_ARCH.QWEN2,
    "Qwen3": gguf.MODEL_ARCH.QWEN3,
    "Gemma3": gguf.MODEL_ARCH.GEMMA3,
}


def write_gguf(folder: Path, family: str, path: Path, kind: str = "F32", parts: int = 1, **metadata: Any) -> Path:
    """The checkpoint in `folder` as GGUF with matrices of type `kind`; returns the path of the first part.

    metadata: further entries of the architecture; `_` in names means `.`, None leaves an entry out.
    """
    config = json.loads((folder / "config.json").read_text())
    tensors = convert_tensors(folder, family, config)
    per_part = 0 if parts == 1 else math.ceil(len(tensors) / parts)
    arch = ARCHITECTURES[family]
    writer = GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch], split_max_tensors=per_part)
    for key, value in {**architecture_entries(config), **metadata}.items():
        add_entry(writer, f"{writer.arch}.{key}", value)
    for name, values in tensors.items():
        quantised = GGMLQuantizationType[kind] if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(name, blocks_of(values, quantised), raw_dtype=quantised)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if parts == 1 else path.with_name(f"{path.stem}-00001-of-{parts:05d}.gguf")


def blocks_of(values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """As the `gguf` package quantises; random blocks of about the same size where it cannot (K types)."""
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        return random_blocks(kind, *values.shape).blocks.numpy()


def add_entry(writer: GGUFWriter, key: str, value: Any) -> None:
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    if value is not None:
        adders[type(value)](key, value)


def architecture_entries(config: dict[str, Any]) -> dict[str, Any]:
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    full = rope.get("full_attention", rope)
    return {
        "vocab_size": config["vocab_size"],
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "rope.dimension_count": head_size,
        "rope.freq_base": full["rope_theta"],
        "rope.scaling.type": full["rope_type"] if full["rope_type"] in ("linear", "yarn") else None,
        "rope.scaling.factor": full["factor"] if full["rope_type"] in ("linear", "yarn") else None,
        "rope.scaling.original_context_length": (
            full["original_max_position_embeddings"] if full["rope_type"] == "yarn" else None
        ),
        "attention.sliding_window": config.get("sliding_window") if "sliding_attention" in rope else None,
    }


def convert_tensors(folder: Path, family: str, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Under GGUF's names, in GGUF's layout, float32."""
    names = gguf.get_tensor_name_map(ARCHITECTURES[family], config["num_hidden_layers"])
    out = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        if family == "Llama":
            values = permuted(values, name, config)
        if family == "Gemma3" and name.endswith("norm.weight"):
            values = values + 1
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new_name is not None, name
        out[new_name] = values
    rope = config["rope_parameters"]
    if rope.get("rope_type") == "llama3":
        out["rope_freqs.weight"] = llama3_factors(rope, config["head_dim"])
    return out


def permuted(values: np.ndarray, name: str, config: dict[str, Any]) -> np.ndarray:
    """The rows of q and k with the two halves of each head interleaved."""
    for part, heads in (("q_proj", config["num_attention_heads"]), ("k_proj", config["num_key_value_heads"])):
        if part in name:
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            return halves.swapaxes(1, 2).reshape(values.shape)
    return values


def llama3_factors(rope: dict[str, Any], head_size: int) -> np.ndarray:
    """What llama3's rope type divides each frequency by."""
    original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for i in range(0, head_size, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_size)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def save_rounded(folder: Path, target: Path, kind: str) -> None:
    """The checkpoint again, with each matrix as it comes back from type `kind`."""
    quantised = GGMLQuantizationType[kind]

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        values = tensor.float().numpy()
        if values.ndim < 2:
            return tensor
        return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(values, quantised), quantised))

    target.mkdir(exist_ok=True)
    (target / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    save_file({name: rounded(tensor) for name, tensor in tensors.items()}, target / "model.safetensors")
