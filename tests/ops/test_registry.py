"""Each backend of each op against the op's definition, on the op's samples."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
import torch

from motet.ops import cpu
from motet.ops.registry import OpSpec, Sample, all_ops, define_op, implement_op

CASES = [
    pytest.param(op, backend, sample, id=f"{op.name}-{backend}-{sample.label}")
    for op in all_ops()
    for backend in op.backends
    for sample in op.samples()
]


def copies(args: tuple[Any, ...]) -> list[Any]:
    return [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]


def as_tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize(("op", "backend", "sample"), CASES)
def test_backend_agrees_with_the_definition(op: OpSpec, backend: str, sample: Sample) -> None:
    expected = as_tuple(op.reference(*copies(sample.args)))
    got = as_tuple(op.backends[backend](*copies(sample.args)))
    assert len(got) == len(expected)
    for one, wanted in zip(got, expected, strict=True):
        rtol, atol = op.tolerance[wanted.dtype]
        torch.testing.assert_close(one, wanted, rtol=rtol, atol=atol)


def test_kernels_are_built_where_there_is_a_compiler() -> None:
    if not (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")):
        pytest.skip("no C++ compiler")
    assert cpu.is_available()
    assert {op.name for op in all_ops() if "cpu" in op.backends} >= {"rms_norm", "linear"}


def test_names_are_taken_once() -> None:
    op = all_ops()[0]
    with pytest.raises(ValueError, match="already defined"):
        define_op(op)
    unlisted = OpSpec("unlisted", op.reference, list, {})
    implement_op(unlisted, "cpu", op.reference)
    with pytest.raises(ValueError, match="already has a backend 'cpu'"):
        implement_op(unlisted, "cpu", op.reference)
