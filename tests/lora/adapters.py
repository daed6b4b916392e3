"""Random adapters for tiny checkpoints, written as PEFT writes them, and engines that use them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from motet.core.lora import LoRARequest
from motet.core.outputs import RequestOutput
from motet.core.params import RequestOutputKind, SamplingParams
from motet.engine.engine import Engine
from tests.engine.driver import make_engine, run

Shapes = Mapping[str, tuple[int, int]]


def linear_shapes(model: Any) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the linear layers of a transformers model that adapters can change, by name."""
    found = {}
    for name, module in model.named_modules():
        if name.endswith("lm_head") or not hasattr(module, "weight"):
            continue
        if type(module).__name__ == "Conv1D":
            found[name] = (module.weight.shape[1], module.weight.shape[0])
        elif isinstance(module, torch.nn.Linear):
            found[name] = tuple(module.weight.shape)
    return found


def write_adapter(
    folder: Path,
    shapes: Shapes,
    rank: int = 4,
    seed: int = 0,
    drop: Sequence[str] = (),
    extra: Mapping[str, torch.Tensor] | None = None,
    prefix: str = "base_model.model.",
    **config: Any,
) -> Path:
    """An adapter for all modules of `shapes`. Parts of names in `drop` are left out, `extra` tensors come on top."""
    generator = torch.Generator().manual_seed(seed)
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({name.rsplit(".", 1)[-1] for name in shapes}),
        "bias": "none",
        **config,
    }
    tensors = {}
    for name, (num_outputs, num_inputs) in shapes.items():
        own = next((r for part, r in values.get("rank_pattern", {}).items() if name.endswith(part)), rank)
        sides = {"A": (own, num_inputs), "B": (num_outputs, own)}
        for side, shape in sides.items():
            tensor = torch.randn(shape, generator=generator) * (0.4 / math.sqrt(shape[1]))
            tensors[f"{prefix}{name}.lora_{side}.weight"] = tensor
    tensors = {name: tensor for name, tensor in tensors.items() if not any(part in name for part in drop)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(values))
    save_file({**tensors, **(extra or {})}, str(folder / "adapter_model.safetensors"))
    return folder


def lora_engine(folder: Path, **options: Any) -> Engine:
    return make_engine(folder, **{"enable_lora": True, "max_loras": 4, **options})


def request(folder: Path, lora_id: int, **changes: Any) -> LoRARequest:
    return LoRARequest(f"adapter-{lora_id}", lora_id, str(folder), **changes)


def generate(
    engine: Engine,
    prompts: Sequence[list[int]],
    params: SamplingParams | Sequence[SamplingParams],
    adapters: Sequence[LoRARequest | None],
) -> list[RequestOutput]:
    """Answers to all prompts, run together, each with its adapter."""
    keys = [add(engine, *one) for one in zip(prompts, _each(params, len(prompts)), adapters, strict=True)]
    done = run(engine)
    return [done[key] for key in keys]


def add(engine: Engine, prompt: list[int], params: SamplingParams, adapter: LoRARequest | None) -> str:
    final = params.clone(output_kind=RequestOutputKind.FINAL_ONLY)
    return engine.add(engine.parse(prompt, final), final, adapter=engine.adapter(adapter))


def _each(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    return [params] * count if isinstance(params, SamplingParams) else list(params)
