"""The kernel from the QKV projection to heads: each token by itself, whatever the batch and the threads."""

from __future__ import annotations

import pytest
import torch

from motet.ops import cpu
from motet.ops.reference.rope import QKV_HEADS

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the kernels are not built")

OPS = cpu.CpuOps()


@pytest.mark.parametrize("sample", QKV_HEADS.samples(), ids=lambda sample: sample.label)
def test_tokens_do_not_depend_on_their_mates(sample: object) -> None:
    qkv, heads, kv_heads, size, positions, *rest = sample.args  # type: ignore[attr-defined]
    together = OPS.qkv_heads(qkv, heads, kv_heads, size, positions, *rest)
    for t in range(len(qkv)):
        alone = OPS.qkv_heads(qkv[t : t + 1], heads, kv_heads, size, positions[t : t + 1], *rest)
        assert all(torch.equal(one[0], many[t]) for one, many in zip(alone, together, strict=True))


def test_wrong_inputs_are_refused() -> None:
    qkv, positions = torch.zeros(3, 40), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"qkv must be contiguous \[T, 32\]"):
        OPS.qkv_heads(qkv, 2, 1, 8, positions)
    with pytest.raises(ValueError, match="positions must be int64"):
        OPS.qkv_heads(qkv, 3, 1, 8, positions.int())
