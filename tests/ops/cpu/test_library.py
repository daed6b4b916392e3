"""Loading the kernels: the choice of an instruction set, the shared OpenMP runtime, and life without kernels."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from motet.core.errors import UnsupportedError
from motet.ops import cpu
from motet.ops.cpu import library

needs_kernels = pytest.mark.skipif(not cpu.is_available(), reason="installed without the C++ kernels")


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )


@needs_kernels
def test_the_best_instruction_set_is_the_default() -> None:
    isas = library.supported_isas()
    assert isas[0] == "generic"
    done = run_python("from motet.ops import cpu; print(cpu.isa())", MOTET_ISA="")
    assert done.stdout.split() == [isas[-1]]


@needs_kernels
def test_an_instruction_set_can_be_named() -> None:
    done = run_python("from motet.ops import cpu; print(cpu.isa())", MOTET_ISA="generic")
    assert done.stdout.split() == ["generic"]
    done = run_python("from motet.ops import cpu", MOTET_ISA="mmx")
    assert done.returncode != 0
    assert "MOTET_ISA must be one of generic" in done.stderr
    assert "'mmx'" in done.stderr


@needs_kernels
def test_a_foreign_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot run kernels for 'mmx'"):
        library._kernels.Kernels("mmx")


@needs_kernels
@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs procfs")
def test_kernels_share_the_openmp_runtime_of_torch() -> None:
    code = """
import torch
from motet.ops import cpu
torch.set_num_threads(2)
x = torch.ones(64, 4096)
torch.add(x, x)
cpu.CpuOps().rms_norm(x, torch.ones(4096), 1e-5)
paths = {line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line}
print(len(paths))
"""
    assert run_python(code).stdout.split() == ["1"]


MISSING = "import sys; sys.modules['motet._kernels'] = None\n"


def test_missing_kernels_are_told_once_and_the_definition_still_works() -> None:
    code = """
from motet.ops import cpu
import torch
from motet.ops.reference.norm import rms_norm
from motet.ops.registry import all_ops
assert not cpu.is_available() and cpu.isa() is None
assert not any("cpu" in op.backends for op in all_ops())
print(rms_norm(torch.ones(1, 4), torch.ones(4), 0.0).tolist())
"""
    done = run_python(MISSING + code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[1.0, 1.0, 1.0, 1.0]]"
    assert done.stderr.count("C++ kernels are missing") == 1
    assert "install a C++ compiler" in done.stderr


def test_calling_a_missing_kernel_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", None)
    with pytest.raises(UnsupportedError, match="use the reference ops"):
        library.kernels()
