"""Matrices into the layouts that the C++ kernels read (csrc/linear.cpp, csrc/quant_formats.h), once, at load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from motet.core.block_types import BlockType
from motet.ops.cpu.library import DTYPE_CODES, LINEAR_BLOCK, QUANT_BLOCK, kernels
from motet.ops.gguf_types import DEQUANTIZERS, PLAIN
from motet.ops.quantized import GGUF_GROUP, SCHEMES, QuantizedMatrix, int4_group

INT8, INT4 = 100, 101  # beside GGUF's numbers of types: csrc/kernel_args.h, QuantKind
MAX_INT8_INPUTS = 65536  # of 255 * 127 each, the sum fits 32 bits


@dataclass(frozen=True)
class PackedPart:
    """Some neighbouring outputs of a matrix, all of one kind.

    data: float32, bfloat16 or float16 weights, or bytes of quantised ones; kind: None for floats
    group: inputs that share a scale of the activations, 0 for floats
    """

    data: Tensor
    num_outputs: int
    kind: int | None
    group: int


@dataclass(frozen=True)
class PackedLinear:
    """A matrix [num_outputs, num_inputs], its parts side by side."""

    parts: tuple[PackedPart, ...]
    num_outputs: int
    num_inputs: int

    @property
    def num_bytes(self) -> int:
        return sum(part.data.nbytes for part in self.parts)


@dataclass(frozen=True)
class _Source:
    """A matrix to pack: floats, also those that are yet to be quantised, or blocks of GGUF."""

    data: Tensor
    num_inputs: int
    kind: int | None
    group: int

    @property
    def layout(self) -> tuple[torch.dtype, int | None, int]:
        """Neighbours of one layout become one part."""
        return self.data.dtype, self.kind, self.group


def _source(part: Tensor | QuantizedMatrix, scheme: str | None) -> _Source:
    if isinstance(part, QuantizedMatrix):
        if part.kind not in PLAIN:
            if part.kind not in DEQUANTIZERS:
                raise ValueError(f"no kernel for weights of type {part.kind.name}; dequantize() them first")
            return _Source(part.blocks, part.num_inputs, int(BlockType(part.kind)), GGUF_GROUP)
        part = part.dequantize(PLAIN[part.kind])
    if part.dtype not in DTYPE_CODES or part.dim() != 2:
        raise ValueError(
            f"weight must be a matrix of float32, bfloat16 or float16, got {part.dtype} {list(part.shape)}"
        )
    num_inputs = part.shape[1]
    if scheme is None:
        return _Source(part, num_inputs, None, 0)
    group = int4_group(num_inputs) if scheme == "int4" else None
    if group is not None:
        return _Source(part, num_inputs, INT4, group)
    if num_inputs > MAX_INT8_INPUTS:
        raise ValueError(f"int8 weights have at most {MAX_INT8_INPUTS} inputs, got {num_inputs}; use int4 or none")
    return _Source(part, num_inputs, INT8, num_inputs)


def _packed_bytes(source: _Source, num_outputs: int) -> int:
    if source.kind is not None:
        return kernels().packed_bytes(source.kind, num_outputs, source.num_inputs, source.group)
    num_rows = -(-num_outputs // LINEAR_BLOCK) * LINEAR_BLOCK
    is_paired = source.data.dtype is torch.bfloat16
    num_columns = source.num_inputs + source.num_inputs % 2 if is_paired else source.num_inputs
    return num_rows * num_columns * source.data.itemsize


def _pack_run(run: Sequence[_Source]) -> PackedPart:
    """Sources of one layout, one after the other."""
    first, matrices = run[0], [source.data for source in run]
    block = LINEAR_BLOCK if first.kind is None else QUANT_BLOCK
    if any(len(matrix) % block for matrix in matrices[:-1]):  # two matrices may not share a block
        matrices = [torch.cat(matrices)]
    num_outputs = sum(len(matrix) for matrix in matrices)
    data = torch.empty(_packed_bytes(first, num_outputs), dtype=torch.uint8)
    address, calls = data.data_ptr(), kernels()
    for matrix in matrices:
        source, dtype = matrix.contiguous(), DTYPE_CODES.get(matrix.dtype, 0)
        if first.kind is None:
            calls.pack_linear(address, source.data_ptr(), len(source), first.num_inputs, dtype)
        else:
            calls.pack_quantized(
                address, source.data_ptr(), len(source), first.num_inputs, first.group, first.kind, dtype
            )
        address += _packed_bytes(first, len(source))
    return PackedPart(
        data if first.kind is not None else data.view(first.data.dtype), num_outputs, first.kind, first.group
    )


def pack_linear(*parts: Tensor | QuantizedMatrix, scheme: str | None = None) -> PackedLinear:
    """Matrices [N, K] over the same inputs, whose outputs stand side by side -> one for the kernels.

    Tensors are float32, bfloat16 or float16, whatever the activations are. `scheme` ("int8", "int4") quantises them:
    see motet.ops.reference.quantized. Raises ValueError for what no kernel can read.
    """
    if scheme is not None and scheme not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, or None, got {scheme!r}")
    sources = [_source(part, scheme) for part in parts]
    if len({source.num_inputs for source in sources}) != 1:
        raise ValueError(f"the parts must have the same inputs, got {[source.num_inputs for source in sources]}")
    packed = tuple(_pack_run(list(run)) for _, run in groupby(sources, key=lambda source: source.layout))
    return PackedLinear(packed, sum(part.num_outputs for part in packed), sources[0].num_inputs)


@dataclass(frozen=True)
class PackedExperts:
    """The same matrix [num_outputs, num_inputs] of each of several experts, all packed alike.

    addresses: for each part int64 [num_experts], where the experts' data lies
    """

    experts: tuple[PackedLinear, ...]
    addresses: tuple[Tensor, ...]

    @property
    def num_outputs(self) -> int:
        return self.experts[0].num_outputs

    @property
    def num_inputs(self) -> int:
        return self.experts[0].num_inputs


def pack_experts(matrices: Sequence[PackedLinear]) -> PackedExperts:
    """What `pack_linear` gave for each expert, in their order. Raises ValueError where they differ in shape or kind."""
    layouts = {
        (matrix.num_inputs, *((part.num_outputs, part.kind, part.group, part.data.dtype) for part in matrix.parts))
        for matrix in matrices
    }
    if len(layouts) != 1:
        raise ValueError("the experts of a layer must have matrices of one shape and one kind")
    columns = zip(*(matrix.parts for matrix in matrices), strict=True)
    addresses = tuple(torch.tensor([part.data.data_ptr() for part in column]) for column in columns)
    return PackedExperts(tuple(matrices), addresses)
