"""Row blocks: work over [rows, vocabulary] is done in pieces, so that temporaries stay small and in cache."""

from __future__ import annotations

from collections.abc import Iterator

BLOCK_ELEMENTS = 1 << 18


def row_blocks(num_rows: int, vocab_size: int) -> Iterator[slice]:
    """Slices that cover `num_rows` rows, each of about BLOCK_ELEMENTS elements and at least one row."""
    step = max(1, BLOCK_ELEMENTS // vocab_size)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))
