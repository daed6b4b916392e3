"""`motet env`: what a bug report needs."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from motet import __version__
from motet.cli.terminal import print_fields

PACKAGES = (
    "torch",
    "numpy",
    "msgspec",
    "tokenizers",
    "safetensors",
    "gguf",
    "jinja2",
    "huggingface-hub",
    "transformers",
    "typer",
    "rich",
)
# Instruction sets that kernels are or may be written for, as /proc/cpuinfo spells them.
CPU_FLAGS = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "sve", "bf16", "i8mm"),
)
VARIABLES = ("MOTET_", "OMP_", "KMP_", "MKL_", "GOMP_", "HF_", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES")


def env(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Show what a bug report needs: versions, processor, kernels, memory."""
    report = collect()
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        print_fields(_rows(report))


def collect() -> dict[str, Any]:
    return {
        "versions": {"motet": __version__, "python": platform.python_version(), **_packages()},
        "system": {"os": _os_name(), "kernel": platform.release(), "libc": " ".join(platform.libc_ver())},
        "cpu": _cpu(),
        "kernels": _kernels(),
        "memory": _memory(),
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES) and "TOKEN" not in k},
    }


def _packages() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cpu() -> dict[str, Any]:
    from motet.runner.threads import default_threads

    facts, threads = _cpuinfo(), default_threads()
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    return {
        "model": facts.get("model name") or platform.machine(),
        "architecture": platform.machine(),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "cgroup_quota_cores": threads.quota,
        "threads": str(threads),
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor's lines."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _kernels() -> dict[str, Any]:
    import torch

    from motet.ops.cpu.library import isa, supported_isas

    return {
        "in_use": isa() or "none: ops run on the torch reference",
        "supported": supported_isas(),
        "torch_threads": torch.get_num_threads(),
        "torch_cpu": torch.backends.cpu.get_cpu_capability(),
        "torch_cuda": torch.version.cuda,
    }


def _memory() -> dict[str, int]:
    import psutil

    from motet.runner.memory import available_bytes

    return {"total_bytes": int(psutil.virtual_memory().total), "available_bytes": available_bytes()}


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for title, values in report.items():
        rows.append(("CPU" if title == "cpu" else title.capitalize(), ""))
        rows += [(name.replace("_", " "), _show(name, value)) for name, value in values.items()]
    return rows


def _show(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{value / 2**30:.1f} GiB"
    if isinstance(value, list):
        return " ".join(value) or "none"
    return "-" if value is None else str(value)
