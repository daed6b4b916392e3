"""Tiny random checkpoints, written by transformers, which is also the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.tokenizers_tiny import save_tiny_tokenizer

VOCAB_SIZE = 512

# Of families whose configs use these names.
COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Other names than COMMON's; what is left of COMMON is not passed on.
RENAMED = {
    "GPT2": {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
    },
    "Bloom": {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
}
WINDOW = 12
LONG_FACTORS = [1.0 + 0.5 * i for i in range(6)]

# Family -> config values beside COMMON. Every checkpoint has 2 layers (4 where layers alternate) and hidden size 64.
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama": {"num_key_value_heads": 2},
    "Mistral": {"num_key_value_heads": 2, "sliding_window": WINDOW},
    "Qwen2": {
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 2,
        "tie_word_embeddings": True,
    },
    "Qwen3": {"num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": True},
    "Qwen3Moe": {
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "head_dim": 24,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    },
    "Gemma2": {
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "head_dim": 24,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
    },
    "Gemma3": {
        "num_key_value_heads": 1,
        "num_hidden_layers": 4,
        "head_dim": 24,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 20,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "Olmo2": {"num_key_value_heads": 2},
    "GPT2": {},
    "Bloom": {"num_attention_heads": 6, "hidden_size": 48},
    "Mixtral": {
        "num_key_value_heads": 2,
        "sliding_window": WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "Phi3": {
        "num_key_value_heads": 2,
        "sliding_window": WINDOW,
        "partial_rotary_factor": 0.75,
        # As long as the original: transformers and the engine agree on the short factors, whatever the prompt.
        "original_max_position_embeddings": 256,
        "rope_scaling": {
            "type": "longrope",
            "factor": 4.0,
            "short_factor": LONG_FACTORS,
            "long_factor": LONG_FACTORS[::-1],
        },
    },
}
# Gemma multiplies its embedding by 8; smaller tables keep a token from being its own successor for ever.
EMBEDDING_STD = {"Gemma2": 0.04, "Gemma3": 0.04}
CLASSES = {"GPT2": ("GPT2Config", "GPT2LMHeadModel"), "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM")}


def make_model(family: str, seed: int = 0, **overrides: Any) -> Any:
    """A transformers model of `family` ("Llama") with random float32 weights.

    They are large enough for choices to be clear (the best two logits differ by 1,000 times what rounding does) and for
    greedy answers to wander. The same for the same arguments.
    """
    import transformers

    config_class, model_class = CLASSES.get(family, (f"{family}Config", f"{family}ForCausalLM"))
    values = {**COMMON, **CONFIGS.get(family, {}), **overrides}
    names = RENAMED.get(family, {})
    config = getattr(transformers, config_class)(**{names.get(key, key): value for key, value in values.items()})
    torch.manual_seed(seed)
    model = getattr(transformers, model_class)._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                is_embedding = parameter.shape[0] == VOCAB_SIZE
                parameter.normal_(0, EMBEDDING_STD.get(family, 0.12) if is_embedding else 0.3)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save_model(folder: Path, family: str, seed: int = 0, **overrides: Any) -> Any:
    """Write the checkpoint (no tokenizer) and return the transformers model."""
    model = make_model(family, seed, **overrides)
    model.save_pretrained(folder)
    return model


def checkpoint(family: str, root: Path) -> tuple[Path, Any]:
    """Write checkpoint and tokenizer to a folder under `root`; returns the folder and the transformers model."""
    folder = root / family
    model = save_model(folder, family)
    save_tiny_tokenizer(folder)
    return folder, model
