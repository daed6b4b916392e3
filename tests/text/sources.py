"""Tokenizers and texts that several tests of this folder share."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import tokenizers
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from motet.text.tokenizer import Tokenizer
from tests.text.packaged import ODD_TEXTS
from tests.tokenizers_tiny import LINES, byte_fallback, byte_level


@cache
def tiny(kind: str) -> Tokenizer:
    """`byte_level`, `byte_fallback` or `no_prefix` (byte fallback without the space in front)."""
    if kind == "byte_level":
        return Tokenizer(byte_level(), {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    backend = byte_fallback(add_space_prefix=kind == "byte_fallback")
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})


KINDS = ("byte_level", "byte_fallback", "no_prefix")
token_ids = st.lists(st.integers(0, 399), max_size=24)
odd_text = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \n\tabé日😀👍🏽\u0301'0123.▁<>|")),
    max_size=20,
)


@cache
def byte_level_metadata(pre: str = "gpt-2") -> dict[str, Any]:
    """GGUF metadata of a vocabulary whose merges know no word boundaries, so that each wrong cut shows in the ids."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator([*LINES, *ODD_TEXTS] * 2, trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
    }


@cache
def sentencepiece_metadata(add_space_prefix: bool = True) -> dict[str, Any]:
    """GGUF metadata of the tiny byte-fallback vocabulary, its scores falling with the order of its merges."""
    tokens = sorted(byte_fallback().get_vocab(), key=byte_fallback().token_to_id)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(index) for index in range(len(tokens) - 259)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }
