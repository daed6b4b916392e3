"""The torch dequantisers against the gguf package's, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from motet.ops import gguf_types
from motet.ops.gguf_types import DEQUANTIZERS, PLAIN, SUPPORTED, dequantize


def random_blocks(kind: GGMLQuantizationType, num_blocks: int) -> np.ndarray:
    """Random bytes, so that every pattern of bits occurs; scales may be subnormal, infinite or no numbers."""
    return np.random.default_rng(kind.value).integers(0, 256, (num_blocks, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)
def test_values_are_the_packages_bits(kind: GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_types, "CHUNK", 1024)  # so that there are several, and a rest
    blocks = random_blocks(kind, 301)
    expected = gguf.quants.dequantize(blocks, kind).reshape(-1)
    actual = dequantize(torch.from_numpy(blocks).view(-1), kind, torch.float32).numpy()
    is_nan = np.isnan(expected)
    assert is_nan.mean() < 0.5
    assert np.array_equal(np.isnan(actual), is_nan)
    assert np.array_equal(actual[~is_nan].view(np.uint32), expected[~is_nan].view(np.uint32))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_rounded_once(kind: GGMLQuantizationType, dtype: torch.dtype) -> None:
    raw = torch.from_numpy(random_blocks(kind, 20)).view(-1)
    expected = dequantize(raw, kind, torch.float32).to(dtype)
    torch.testing.assert_close(dequantize(raw, kind, dtype), expected, rtol=0, atol=0, equal_nan=True)


def test_plain_tensors_are_not_copied() -> None:
    raw = torch.zeros(64, dtype=torch.uint8)
    for kind, dtype in PLAIN.items():
        assert dequantize(raw, kind, dtype).data_ptr() == raw.data_ptr()


def test_kinds_do_not_overlap() -> None:
    assert len(set(SUPPORTED)) == len(PLAIN) + len(DEQUANTIZERS)
