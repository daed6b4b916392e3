"""Block formats of GGUF: quantised bytes to numbers, in torch.

A tensor is a run of blocks, each of `BLOCK_SIZES[type]` elements and bytes. The functions below take blocks uint8
[N, bytes] and give float32 [N, elements], bit for bit what the `gguf` package's numpy code gives (d: scale, m: minimum,
q: small integers). Source: ggml's ggml-common.h and ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from motet.core.block_types import BLOCK_SIZES, BlockType

PLAIN = {
    BlockType.F32: torch.float32,
    BlockType.F16: torch.float16,
    BlockType.BF16: torch.bfloat16,
}
# Elements at a time. Intermediate results stay in the cache; and torch does this many in one thread, so that no thread
# waits for others at each small operator, which takes for ever on a busy machine.
CHUNK = 1 << 15


def _half(bytes_: Tensor) -> Tensor:
    """uint8 [N, 2] -> float32 [N, 1]."""
    return bytes_.contiguous().view(torch.float16).float()


def _unpack(bytes_: Tensor, bits: int, run: int) -> Tensor:
    """Small integers of `bits` bits, uint8 [N, B] -> uint8 [N, B * 8 / bits].

    Of every `run` bytes come first the lowest bits of each, then the next higher ones, and so on.
    """
    packed = bytes_.clone(memory_format=torch.contiguous_format)  # a copy always: one row may count as contiguous
    words = packed.view(torch.int64).view(len(bytes_), -1, 1, run // 8)  # 8 bytes are shifted at a time
    shifted = torch.cat([words >> shift for shift in range(0, 8, bits)], dim=2)
    return shifted.bitwise_and_(0x0101010101010101 * ((1 << bits) - 1)).view(torch.uint8).view(len(bytes_), -1)


def _q4_0(blocks: Tensor) -> Tensor:
    return _unpack(blocks[:, 2:], 4, 16).float().sub_(8).mul_(_half(blocks[:, :2]))


def _q4_1(blocks: Tensor) -> Tensor:
    return _unpack(blocks[:, 4:], 4, 16).float().mul_(_half(blocks[:, :2])).add_(_half(blocks[:, 2:4]))


# Byte -> its 8 bits, lowest first, each as a byte of value 16 or 0; the 8 bytes as one word.
FIFTH_BITS = (((torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1) * 16).to(torch.uint8).view(torch.int64).view(-1)


def _q5(high: Tensor, low: Tensor) -> Tensor:
    """Four low bits as in the types above, and the 32 fifth bits in order in `high` [N, 4]."""
    fifth = FIFTH_BITS.index_select(0, high.reshape(-1).int()).view(torch.uint8).view(len(high), 32)
    return (_unpack(low, 4, 16) | fifth).float()


def _q5_0(blocks: Tensor) -> Tensor:
    return _q5(blocks[:, 2:6], blocks[:, 6:]).sub_(16).mul_(_half(blocks[:, :2]))


def _q5_1(blocks: Tensor) -> Tensor:
    return _q5(blocks[:, 4:8], blocks[:, 8:]).mul_(_half(blocks[:, :2])).add_(_half(blocks[:, 2:4]))


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks[:, :2]))


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """d and m of the 8 parts of Q4_K and Q5_K blocks, each float32 [N, 8, 1].

    12 bytes hold 8 + 8 integers of 6 bits: those of parts 0 to 3 in the low bits of bytes 0 to 7, those of parts 4 to 7
    in the halves of bytes 8 to 11 with their upper two bits in the upper bits of bytes 0 to 7.
    """
    low, high, both = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    d = torch.cat([low & 63, (both & 15) | ((low >> 2) & 48)], dim=1).float() * _half(blocks[:, :2])
    m = torch.cat([high & 63, (both >> 4) | ((high >> 2) & 48)], dim=1).float() * _half(blocks[:, 2:4])
    return d.unsqueeze(2), m.unsqueeze(2)


def _q4_k(blocks: Tensor) -> Tensor:
    d, m = _scales_and_minima(blocks)
    q = _unpack(blocks[:, 16:], 4, 32).view(-1, 8, 32)
    return q.float().mul_(d).sub_(m).view(-1, 256)


def _q5_k(blocks: Tensor) -> Tensor:
    d, m = _scales_and_minima(blocks)
    q = _unpack(blocks[:, 48:], 4, 32) | (_unpack(blocks[:, 16:48], 1, 32) << 4)
    return q.view(-1, 8, 32).float().mul_(d).sub_(m).view(-1, 256)


def _q6_k(blocks: Tensor) -> Tensor:
    q = _unpack(blocks[:, :128], 4, 64) | (_unpack(blocks[:, 128:192], 2, 32) << 4)
    d = blocks[:, 192:208].view(torch.int8).float() * _half(blocks[:, 208:])
    return q.view(-1, 16, 16).float().sub_(32).mul_(d.unsqueeze(2)).view(-1, 256)


DEQUANTIZERS: dict[BlockType, Callable[[Tensor], Tensor]] = {
    BlockType.Q4_0: _q4_0,
    BlockType.Q4_1: _q4_1,
    BlockType.Q5_0: _q5_0,
    BlockType.Q5_1: _q5_1,
    BlockType.Q8_0: _q8_0,
    BlockType.Q4_K: _q4_k,
    BlockType.Q5_K: _q5_k,
    BlockType.Q6_K: _q6_k,
}
SUPPORTED = (*PLAIN, *DEQUANTIZERS)


def dequantize(raw: Tensor, kind: BlockType, dtype: torch.dtype) -> Tensor:
    """Flat uint8 bytes of a tensor of type `kind` -> its values, flat, in `dtype`; plain types may share the memory."""
    if kind in PLAIN:
        return raw.view(PLAIN[kind]).to(dtype)
    block_len, block_bytes = BLOCK_SIZES[kind]
    blocks, convert = raw.view(-1, block_bytes), DEQUANTIZERS[kind]
    out = torch.empty(len(blocks), block_len, dtype=dtype)
    for source, target in zip(blocks.split(CHUNK // block_len), out.split(CHUNK // block_len), strict=True):
        target.copy_(convert(source))
    return out.view(-1)
