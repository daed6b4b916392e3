"""Writes a bf16 checkpoint with the shape of Qwen3-0.6B and random weights (fixed seed), for compute-bound measuring.

    python bench/make_random_checkpoint.py OUT_DIR --tokenizer DIR [--layers 28]

Its text is noise; only its speed means anything. The tokenizer's files are copied from --tokenizer.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a random checkpoint with the shape of Qwen3-0.6B.")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("--tokenizer", required=True, metavar="DIR")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_default_dtype(torch.bfloat16)
    config = Qwen3Config(
        hidden_size=1024,
        num_hidden_layers=args.layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        vocab_size=151936,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
        rope_theta=1000000.0,
        rms_norm_eps=1e-6,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        dtype="bfloat16",
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(args.out)
    for pattern in ("tokenizer*", "*.jinja"):
        for file in Path(args.tokenizer).glob(pattern):
            shutil.copy(file, args.out)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters in {args.out}")


if __name__ == "__main__":
    main()
