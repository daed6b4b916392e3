"""Weights: what is taken, missing, misshapen and left over."""

from __future__ import annotations

import pytest
import torch

from motet.core.errors import LoadError
from motet.nn.context import Weights
from tests.nn.source import DictSource, context


def test_taking_counts_bytes_and_marks_names() -> None:
    weights = Weights(DictSource({"a": torch.zeros(2, 3), "b": torch.zeros(4)}))
    assert weights.has("a")
    assert not weights.has("c")
    assert weights.take("a", (2, 3), torch.bfloat16).dtype == torch.bfloat16
    assert weights.num_bytes == 12
    with pytest.raises(LoadError, match="'here' has tensors that its architecture does not use: b;"):
        weights.finish()
    weights.finish(ignored=("b*",))
    weights.take("b", (4,), torch.float32)
    weights.finish()


def test_memory_of_files_is_given_back_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[int] = []

    class Source(DictSource):
        def release(self) -> None:
            released.append(weights.num_bytes)

    monkeypatch.setattr("motet.nn.context.RELEASE_BYTES", 32)
    weights = Weights(Source({name: torch.zeros(4) for name in "abcdefg"}))
    for name in "abcdefg":
        weights.take(name, (4,), torch.float32)
    assert released == [48, 96]
    weights.finish()
    assert released == [48, 96, 112]


def test_missing_and_misshapen_tensors_are_named() -> None:
    weights = Weights(DictSource({"a": torch.zeros(2, 3)}))
    with pytest.raises(LoadError, match="tensor 'b' is missing from 'here'"):
        weights.take("b", (2,), torch.float32)
    with pytest.raises(LoadError, match=r"tensor 'a' in 'here' has shape \(2, 3\), but the config asks for \(3, 2\)"):
        weights.take("a", (3, 2), torch.float32)


def test_many_tensors_too_many_are_summed_up() -> None:
    weights = Weights(DictSource({f"t{i}": torch.zeros(1) for i in range(9)}))
    with pytest.raises(LoadError, match=r"t0, t1, t2, t3, t4, \.\.\. \(9 in all\)"):
        weights.finish()


def test_transposed_matrices() -> None:
    stored = torch.arange(6.0).view(2, 3)
    ctx = context({"a": stored})
    matrix = ctx.matrix("a", 3, 2, None, transposed=True)
    assert torch.equal(matrix, stored.T)
    assert matrix.is_contiguous()
