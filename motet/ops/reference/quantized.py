"""Linear layers over quantised weights, with activations in int8: the definitions.

Weights are integers with a scale, and perhaps a minimum, for each group of inputs. Activations are quantised when they
arrive, by themselves for each token and group of inputs: `quantize_rows`. A product is then that of the two matrices of
numbers that these integers stand for, computed in float64 here, and in integers within each group by the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from motet.core.block_types import BLOCK_SIZES, BlockType
from motet.ops.gguf_types import DEQUANTIZERS, PLAIN
from motet.ops.quantized import GGUF_GROUP, QuantizedMatrix, int4_group
from motet.ops.registry import OpSpec, Sample, define_op

LARGEST = torch.tensor(127.0)  # a tensor: torch divides a plain number by multiplying with the reciprocal
NEGLIGIBLE = 2.0**-100  # a group of activations below it counts as zero


def quantize_rows(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """x [T, K] -> integers int8 [T, K] and their scales float32 [T, K / group, rounded up].

    In each group scale = max|x| / 127 and q = x * (127 / max|x|), in float32, rounded to the nearest integer, of halves
    the even one. The scale is NaN where an input is infinite or NaN.
    """
    num_rows, num_cols = x.shape
    num_groups = -(-num_cols // group)
    wide = F.pad(x.float(), (0, num_groups * group - num_cols)).view(num_rows, num_groups, group)
    greatest = wide.abs().amax(dim=2, keepdim=True)
    is_finite = wide.isfinite().all(dim=2, keepdim=True)
    counts = is_finite & (greatest >= NEGLIGIBLE)
    factor = torch.where(counts, LARGEST / greatest, 0.0)
    q = torch.where(is_finite, (wide * factor).round(), 0.0).to(torch.int8)
    scale = torch.where(counts, greatest / LARGEST, torch.where(is_finite, 0.0, torch.nan))
    return q.view(num_rows, num_groups * group)[:, :num_cols], scale.squeeze(2)


def quantize_int8(weight: Tensor) -> Tensor:
    """weight [N, K] -> what its values become, float32: scale * q with scale = max|w| / 127 for each output.

    q = w / scale in float32, rounded to nearest even.
    """
    wide = weight.float()
    scale = wide.abs().amax(dim=1, keepdim=True) / LARGEST
    return (wide / torch.where(scale > 0, scale, 1.0)).round() * scale


def quantize_int4(weight: Tensor, group: int) -> Tensor:
    """weight [N, K] -> what its values become, float32: d * q + m with q from 0 to 15 in each group of inputs.

    d = (max - min) / 15 and m = min, rounded to float16; q = (w - m) / d in float32, rounded to nearest even.
    """
    wide = weight.float().view(len(weight), -1, group)
    low, high = wide.amin(dim=2, keepdim=True), wide.amax(dim=2, keepdim=True)
    d, m = ((high - low) / 15.0).half().float(), low.half().float()
    q = torch.where(d > 0, ((wide - m) / torch.where(d > 0, d, 1.0)).round(), 0.0).clamp(0, 15)
    return (q * d + m).view(weight.shape)


@dataclass(frozen=True)
class ReferenceMatrix:
    """A part of a packed matrix: values [N, K], and the group in which its activations are quantised, None: not."""

    values: Tensor
    group: int | None


def _part(source: Tensor | QuantizedMatrix, scheme: str | None) -> ReferenceMatrix:
    if isinstance(source, QuantizedMatrix):
        if source.kind in PLAIN:
            return ReferenceMatrix(source.dequantize(PLAIN[source.kind]), None)
        if source.kind not in DEQUANTIZERS:
            raise ValueError(f"no linear layer for weights of type {source.kind.name}; dequantize() them first")
        return ReferenceMatrix(source.dequantize(torch.float32), GGUF_GROUP)
    if scheme is None:
        return ReferenceMatrix(source, None)
    group = int4_group(source.shape[1]) if scheme == "int4" else None
    if group is not None:
        return ReferenceMatrix(quantize_int4(source, group), group)
    return ReferenceMatrix(quantize_int8(source), source.shape[1])


def pack_linear(*parts: Tensor | QuantizedMatrix, scheme: str | None = None) -> tuple[ReferenceMatrix, ...]:
    """Matrices [N, K] over the same inputs, whose outputs stand side by side -> what the ops below take.

    scheme: "int8" or "int4" quantises the tensors among them ("int4" as "int8" where no group divides the row)
    """
    return tuple(_part(part, scheme) for part in parts)


def multiply(x: Tensor, weight: tuple[ReferenceMatrix, ...], bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """x [T, K] -> float64 [T, N]: x w' + bias + residual."""
    outs = []
    for part in weight:
        inputs = x.double()
        if part.group is not None:
            q, scale = quantize_rows(x, part.group)
            inputs = q.double() * scale.double().repeat_interleave(part.group, dim=1)[:, : x.shape[1]]
        outs.append(F.linear(inputs, part.values.double()))
    out = torch.cat(outs, dim=1)
    for other in (bias, residual):
        out = out if other is None else out + other.double()
    return out


def quantized_linear(
    x: Tensor,
    weight: Tensor | QuantizedMatrix,
    scheme: str | None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`linear` over a matrix packed with `scheme`: x [T, K] -> [T, N] in x's dtype, rounded once."""
    return multiply(x, pack_linear(weight, scheme=scheme), bias, residual).to(x.dtype)


def random_blocks(kind: BlockType, num_outputs: int, num_inputs: int, seed: int = 0) -> QuantizedMatrix:
    """A matrix of a type: from random weights where the `gguf` package can quantise, else of random valid bytes."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    random = np.random.default_rng(seed + num_outputs + num_inputs)
    try:
        weights = random.standard_normal((num_outputs, num_inputs), dtype=np.float32) / num_inputs**0.5
        return QuantizedMatrix(kind, torch.from_numpy(quantize(weights, GGMLQuantizationType(kind))), num_inputs)
    except NotImplementedError:
        block_len, block_bytes = BLOCK_SIZES[kind]
        blocks = random.integers(0, 256, (num_outputs, num_inputs // block_len, block_bytes), dtype=np.uint8)
        is_q6 = kind == BlockType.Q6_K  # its only float16 stands last; the others begin with two
        scales = blocks[..., -2:] if is_q6 else blocks[..., :4]
        floats = random.uniform(1e-5, 1e-4, (*scales.shape[:-1], scales.shape[-1] // 2)).astype(np.float16)
        scales[...] = floats.view(np.uint8)
        return QuantizedMatrix(kind, torch.from_numpy(blocks.reshape(num_outputs, -1)), num_inputs)


def _linear_samples() -> list[Sample]:
    samples = []
    generator = torch.Generator().manual_seed(0)

    def add(label: str, weight: Tensor | QuantizedMatrix, scheme: str | None, dtype: torch.dtype) -> None:
        num_outputs, num_inputs = (
            (weight.num_outputs, weight.num_inputs) if isinstance(weight, QuantizedMatrix) else weight.shape
        )
        x, residual = torch.randn(7, num_inputs, generator=generator), torch.randn(7, num_outputs, generator=generator)
        bias = torch.randn(num_outputs, generator=generator)
        samples.append(Sample(label, (x.to(dtype), weight, scheme, bias.to(dtype), residual.to(dtype))))

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        for kind in DEQUANTIZERS:
            add(f"{kind.name}-{name}", random_blocks(kind, 72, 512), None, dtype)
        for scheme, num_inputs in (("int8", 577), ("int4", 576), ("int4", 96), ("int4", 40)):
            weight = torch.randn(70, num_inputs, generator=generator) / num_inputs**0.5
            add(f"{scheme}-{num_inputs}-{name}", weight.to(dtype), scheme, dtype)
    return samples


def _row_samples() -> list[Sample]:
    samples = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for num_cols, group in ((64, 32), (256, 128), (577, 577), (1, 1)):
            x = torch.randn(5, num_cols, generator=torch.Generator().manual_seed(num_cols))
            x[1] *= 1e-3
            x[2] = 0
            samples.append(Sample(f"{dtype}-{num_cols}-{group}".removeprefix("torch."), (x.to(dtype), group)))
    return samples


# Sums of groups are float32 in the kernels; bfloat16 and float16 are rounded once on either side.
LINEAR_TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2**-7, 2**-7), torch.float16: (2**-10, 2**-10)}
EXACT: dict[torch.dtype, tuple[float, float]] = {torch.int8: (0, 0), torch.float32: (0, 0)}

QUANTIZED_LINEAR = define_op(OpSpec("quantized_linear", quantized_linear, _linear_samples, LINEAR_TOLERANCE))
QUANTIZE_ROWS = define_op(OpSpec("quantize_rows", quantize_rows, _row_samples, EXACT))
