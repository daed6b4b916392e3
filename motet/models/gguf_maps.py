"""What conversion to GGUF did to a checkpoint, undone: config keys, tensor names, tensor layouts.

Source: the writers of the ggml project's converter; each family below is one entry of FAMILIES.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from motet.core.errors import LoadError
from motet.core.registry import unsupported
from motet.models.gguf import GGUFFile

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SANDWICH_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
NO_WEIGHTS = ("rope_freqs.weight",)
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)$")


@dataclass(frozen=True)
class Family:
    """How one `general.architecture` maps to a Hugging Face architecture."""

    architecture: str
    layer_names: dict[str, str] = field(default_factory=lambda: LAYER_NAMES)
    extra_config: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: {}
    restore: Callable[[dict[str, Any], str, Tensor], Tensor] = lambda config, name, tensor: tensor


def _unpermute(config: dict[str, Any], name: str, tensor: Tensor) -> Tensor:
    """GGUF's llama keeps rotary pairs side by side; undo that order of rows in q and k."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for part, num_heads in heads.items():
        if f".{part}." in name:
            return tensor.view(num_heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    return tensor


def _gemma_norm(config: dict[str, Any], name: str, tensor: Tensor) -> Tensor:
    """GGUF stores Gemma's norm weights with the 1 added."""
    return tensor - 1 if name.endswith("norm.weight") else tensor


def _gemma3_config(values: dict[str, Any]) -> dict[str, Any]:
    scaling = (
        {"rope_type": "linear", "factor": values["rope.scaling.factor"]} if "rope.scaling.factor" in values else {}
    )
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": values.get("rope.freq_base_swa", 10000.0),
        "sliding_window_pattern": values.get("attention.sliding_window_pattern", 6),
        "final_logit_softcapping": values.get("final_logit_softcapping"),
        "rope_scaling": scaling or None,
    }


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", restore=_unpermute),
    "qwen2": Family("Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3ForCausalLM"),
    "gemma3": Family("Gemma3ForCausalLM", {**LAYER_NAMES, **SANDWICH_NAMES}, _gemma3_config, _gemma_norm),
}


def family_of(file: GGUFFile) -> Family:
    name = file.metadata.get("general.architecture")
    if name is None:
        raise LoadError(f"GGUF file {str(file.path)!r} does not say its general.architecture")
    if name not in FAMILIES:
        raise unsupported("GGUF architecture", name, FAMILIES)
    return FAMILIES[name]


def rename(family: Family, name: str) -> str | None:
    """GGUF tensor name -> Hugging Face name; None for tensors that are no weights."""
    if name in NO_WEIGHTS:
        return None
    match = LAYER.match(name)
    if match is not None and match[2] in family.layer_names:
        return f"model.layers.{match[1]}.{family.layer_names[match[2]]}.{match[3]}"
    return TOP_NAMES.get(name, name)


def config_of(file: GGUFFile, family: Family) -> dict[str, Any]:
    """The metadata as the config.json of the same model would say it."""
    prefix = file.metadata["general.architecture"] + "."
    values = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    try:
        heads = values["attention.head_count"]
        config = {
            "architectures": [family.architecture],
            "model_type": file.metadata["general.architecture"],
            "vocab_size": file.tensors["token_embd.weight"].shape[0],
            "hidden_size": values["embedding_length"],
            "intermediate_size": values["feed_forward_length"],
            "num_hidden_layers": values["block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": values.get("attention.head_count_kv", heads),
            "head_dim": values.get("attention.key_length", values["embedding_length"] // heads),
            "rms_norm_eps": values["attention.layer_norm_rms_epsilon"],
            "max_position_embeddings": values["context_length"],
            "rope_theta": values.get("rope.freq_base", 10000.0),
            "rope_scaling": _rope_scaling(file, values),
            "sliding_window": values.get("attention.sliding_window"),
            "attention_bias": "blk.0.attn_q.bias" in file.tensors,
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "dtype": "bfloat16",
        }
    except KeyError as error:
        raise LoadError(f"GGUF file {str(file.path)!r} lacks the entry {error}") from None
    config.update({key: value for key, value in family.extra_config(values).items() if value is not None})
    return config


def _rope_scaling(file: GGUFFile, values: dict[str, Any]) -> dict[str, Any] | None:
    if "rope_freqs.weight" in file.tensors:
        return {"rope_type": "default", "freq_factors": file.tensor("rope_freqs.weight", torch.float32).tolist()}
    kind = values.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    return {
        "rope_type": kind,
        "factor": values.get("rope.scaling.factor"),
        "original_max_position_embeddings": values.get("rope.scaling.original_context_length"),
    }
