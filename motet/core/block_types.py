"""The types of tensors in GGUF files, by number and block size. Source: ggml.h of the ggml project.

Own names and not those of the `gguf` package: importing that takes as long as reading a small model.
"""

from __future__ import annotations

from enum import IntEnum


class BlockType(IntEnum):
    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40


# Elements and bytes of a block.
BLOCK_SIZES: dict[BlockType, tuple[int, int]] = {
    BlockType.F32: (1, 4),
    BlockType.F16: (1, 2),
    BlockType.BF16: (1, 2),
    BlockType.Q4_0: (32, 18),
    BlockType.Q4_1: (32, 20),
    BlockType.Q5_0: (32, 22),
    BlockType.Q5_1: (32, 24),
    BlockType.Q8_0: (32, 34),
    BlockType.Q2_K: (256, 84),
    BlockType.Q3_K: (256, 110),
    BlockType.Q4_K: (256, 144),
    BlockType.Q5_K: (256, 176),
    BlockType.Q6_K: (256, 210),
}
