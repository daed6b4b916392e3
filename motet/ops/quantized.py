"""Matrices that stay quantised: what a weight source hands to an op backend in place of a tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from motet.core.block_types import BLOCK_SIZES, BlockType
from motet.core.config import SCHEMES as SCHEMES
from motet.ops.gguf_types import dequantize

GGUF_GROUP = 32  # inputs that share a scale of the activations, for all types of GGUF


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix [num_outputs, num_inputs] in the blocks of a GGUF type, which lie along the inputs.

    blocks: uint8 [num_outputs, bytes of a row], not to be written to
    """

    kind: BlockType
    blocks: Tensor
    num_inputs: int

    def __post_init__(self) -> None:
        block_len, block_bytes = BLOCK_SIZES[self.kind]
        row_bytes = self.num_inputs // block_len * block_bytes
        if self.num_inputs % block_len or self.blocks.dtype is not torch.uint8 or self.blocks.shape[1:] != (row_bytes,):
            raise ValueError(
                f"{self.num_inputs} inputs of type {self.kind.name} need uint8 rows of {row_bytes} bytes, got "
                f"{self.blocks.dtype} {list(self.blocks.shape)}"
            )

    @property
    def num_outputs(self) -> int:
        return self.blocks.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_outputs, self.num_inputs

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes

    def select(self, order: Tensor) -> QuantizedMatrix:
        """The outputs `order`, int64 [M], in that order."""
        return replace(self, blocks=self.blocks[order])

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[num_outputs, num_inputs]: bit for bit the values of the `gguf` package, rounded to `dtype`."""
        flat = dequantize(self.blocks.contiguous().view(-1), self.kind, dtype)
        return flat.view(self.num_outputs, self.num_inputs)


Matrix: TypeAlias = "Tensor | QuantizedMatrix"


def select_rows(matrix: Matrix, order: Tensor) -> Matrix:
    """The rows `order`, int64 [M], in that order."""
    return matrix.select(order) if isinstance(matrix, QuantizedMatrix) else matrix[order]


def int4_group(num_inputs: int) -> int | None:
    """Inputs that share a scale under "int4": the largest of 128, 64 and 32 that divides the row, or None."""
    return next((group for group in (128, 64, 32) if num_inputs % group == 0), None)


def scheme_bytes(scheme: str, num_outputs: int, num_inputs: int) -> int:
    """What a matrix takes that is quantised when it is packed (the definitions: motet/ops/reference/quantized.py)."""
    group = int4_group(num_inputs) if scheme == "int4" else None
    if group is None:  # a float32 scale for each output
        return num_outputs * (num_inputs + 4)
    return num_outputs * num_inputs // 2 + num_outputs * (num_inputs // group) * 4
