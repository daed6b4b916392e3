"""The numbers and sizes are those of the `gguf` package."""

from __future__ import annotations

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from motet.core.block_types import BLOCK_SIZES, BlockType


def test_numbers_and_sizes() -> None:
    assert all(kind == GGMLQuantizationType[kind.name] for kind in BlockType)
    assert {kind: GGML_QUANT_SIZES[GGMLQuantizationType[kind.name]] for kind in BLOCK_SIZES} == BLOCK_SIZES
