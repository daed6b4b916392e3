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

from motet.core.errors import LoadError, UnsupportedError
from motet.core.registry import unsupported
from motet.models.config import FULL, SLIDING
from motet.models.gguf import GGUFFile
from motet.ops.quantized import Matrix, select_rows

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
ROPE_KEYS = {
    "type": "rope_type",
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
# Entries that change what a model computes and that the families below do not have, with the value that means nothing.
NEUTRAL: dict[str, Any] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": 0.0,
    "attn_logit_softcapping": 0.0,
    "embedding_scale": 0.0,
    "expert_count": 0,
    "logit_scale": 0.0,
    "residual_scale": 0.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "use_parallel_residual": False,
}
PLAIN_DTYPES = {"F32": "float32", "F16": "float16"}
NO_WEIGHTS = ("rope_freqs.weight",)
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)$")


@dataclass(frozen=True)
class Family:
    """How one `general.architecture` maps to a Hugging Face architecture."""

    architecture: str
    layer_names: dict[str, str] = field(default_factory=lambda: LAYER_NAMES)
    extra_config: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: {}
    restore: Callable[[dict[str, Any], str, Matrix], Matrix] = lambda config, name, tensor: tensor


def _unpermute(config: dict[str, Any], name: str, tensor: Matrix) -> Matrix:
    """GGUF's llama keeps rotary pairs side by side; undo that order of rows in q and k."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for part, num_heads in heads.items():
        if f".{part}." in name:
            rows = torch.arange(tensor.shape[0]).view(num_heads, -1, 2)
            return select_rows(tensor, rows.transpose(1, 2).reshape(-1))
    return tensor


def _gemma_norm(config: dict[str, Any], name: str, tensor: Matrix) -> Matrix:
    """GGUF stores Gemma's norm weights with the 1 added."""
    return tensor - 1 if isinstance(tensor, Tensor) and name.endswith("norm.weight") else tensor


def _gemma3_config(values: dict[str, Any]) -> dict[str, Any]:
    width, heads, layers = values["embedding_length"], values["attention.head_count"], values["block_count"]
    pattern = values.get("attention.sliding_window_pattern", 6)
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": values.get("rope.freq_base_swa", 10000.0),
        # A period, or one flag per layer.
        "sliding_window_pattern": pattern if isinstance(pattern, int) else None,
        "layer_types": [SLIDING if flag else FULL for flag in pattern] if isinstance(pattern, list) else None,
        "final_logit_softcapping": values.get("final_logit_softcapping"),
        # Not in the metadata: the model of 62 layers (27B) differs from its siblings.
        "query_pre_attn_scalar": width // heads if layers == 62 else values.get("attention.key_length"),
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
    """The metadata as the config.json of the same model would say it.

    Raises LoadError for a missing entry, UnsupportedError for one that no family above has a meaning for.
    """
    prefix = file.metadata["general.architecture"] + "."
    values = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    for key, neutral in NEUTRAL.items():
        if values.get(key, neutral) != neutral:
            raise UnsupportedError(f"{prefix}{key}={values[key]!r} of GGUF file {str(file.path)!r} is not supported")
    try:
        heads, width = values["attention.head_count"], values["embedding_length"]
        head_size = values.get("attention.key_length", width // heads)
        config = {
            "architectures": [family.architecture],
            "model_type": file.metadata["general.architecture"],
            "vocab_size": file.tensors["token_embd.weight"].shape[0],
            "hidden_size": width,
            "intermediate_size": values["feed_forward_length"],
            "num_hidden_layers": values["block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": values.get("attention.head_count_kv", heads),
            "head_dim": head_size,
            "rms_norm_eps": values["attention.layer_norm_rms_epsilon"],
            "max_position_embeddings": values["context_length"],
            "rope_theta": values.get("rope.freq_base", 10000.0),
            "partial_rotary_factor": values.get("rope.dimension_count", head_size) / head_size,
            "rope_scaling": _rope_scaling(file, values),
            "sliding_window": values.get("attention.sliding_window"),
            "attention_bias": "blk.0.attn_q.bias" in file.tensors,
            "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "dtype": PLAIN_DTYPES.get(file.tensors["blk.0.ffn_down.weight"].type.name, "bfloat16"),
            **family.extra_config(values),
        }
    except KeyError as error:
        raise LoadError(f"GGUF file {str(file.path)!r} lacks the entry {error}") from None
    except TypeError as error:
        raise LoadError(f"GGUF file {str(file.path)!r} has an entry of the wrong type: {error}") from None
    return {key: value for key, value in config.items() if value is not None}


def _rope_scaling(file: GGUFFile, values: dict[str, Any]) -> dict[str, Any] | None:
    scaling: dict[str, Any] = {
        name: values[f"rope.scaling.{key}"] for key, name in ROPE_KEYS.items() if f"rope.scaling.{key}" in values
    }
    if scaling.setdefault("rope_type", "linear" if "factor" in scaling else "none") == "none":
        scaling = {"rope_type": "default"}
    if "rope_freqs.weight" in file.tensors:  # of llama3's rope type
        scaling["freq_factors"] = file.tensor("rope_freqs.weight", torch.float32).tolist()
    return scaling if scaling != {"rope_type": "default"} else None
