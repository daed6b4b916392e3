"""Merge rules of a SentencePiece BPE vocabulary, recovered from its pieces and scores.

SentencePiece joins, again and again, the adjacent pair whose joined text is the piece with the best score (Kudo and
Richardson 2018, "SentencePiece"; the leftmost pair of equals). The tokenizers library wants pairs in order of
preference instead: for each piece, the pairs that make it up, ranked by the piece's score.

The order among the pairs of one piece does not matter. What is joined inside a piece does not depend on what stands
around it (a join across its border would prevent the piece), so it is always the same pair that becomes the piece in
the end; the others are listed because they cost less than finding out which one it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Pair = tuple[str, str]


def recover_merges(pieces: Sequence[str], scores: Sequence[float]) -> list[Pair]:
    """`pieces[i]` has `scores[i]`; the best merge comes first, pieces of equal score go by index."""
    longest_prefix = _longest_prefixes(pieces)
    merges: list[Pair] = []
    for index in sorted(range(len(pieces)), key=scores.__getitem__, reverse=True):  # stable
        piece = pieces[index]
        prefix = longest_prefix[piece]
        while prefix:
            rest = piece[len(prefix) :]
            if rest in longest_prefix:
                merges.append((prefix, rest))
            prefix = longest_prefix[prefix]
    return merges


def _longest_prefixes(pieces: Iterable[str]) -> dict[str, str]:
    """For each piece the longest other piece that it begins with, or an empty string."""
    found: dict[str, str] = {}
    previous = ""
    for piece in sorted(pieces):  # a piece's prefixes stand before it, nearest last
        while previous and not piece.startswith(previous):
            previous = found[previous]
        found[piece] = previous
        previous = piece
    return found
