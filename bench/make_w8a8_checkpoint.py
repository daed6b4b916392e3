"""Writes a bf16 checkpoint with its linear layers in int8, as vLLM reads them (compressed-tensors, W8A8).

    python bench/make_w8a8_checkpoint.py CHECKPOINT OUT_DIR

One scale per output, symmetric, by the largest value; activations are quantised per token as they come. The embedding
and the head stay in bf16. Rounding to nearest costs some quality: only the speed of the result means anything.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def scheme(strategy: str, is_dynamic: bool) -> dict[str, object]:
    return {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": is_dynamic}


CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": scheme("channel", False),
            "input_activations": scheme("token", True),
        }
    },
}


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> int8 [N, K] and the float32 scales [N, 1]."""
    scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    return (weight.float() / scale).round().clamp(-127, 127).to(torch.int8), scale


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a W8A8 checkpoint for vLLM.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with safetensors files")
    parser.add_argument("out", metavar="OUT_DIR")
    args = parser.parse_args()
    source, out = Path(args.checkpoint), Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for file in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if tensor.dim() == 2 and name.endswith("_proj.weight"):
                tensors[name], tensors[f"{name}_scale"] = quantize(tensor)
            else:
                tensors[name] = tensor
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIG}, indent=1), encoding="utf-8")
    for pattern in ("tokenizer*", "*.jinja", "generation_config.json"):
        for file in source.glob(pattern):
            shutil.copy(file, out)


if __name__ == "__main__":
    main()
