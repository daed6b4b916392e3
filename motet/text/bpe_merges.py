"""Merge rules of a SentencePiece BPE vocabulary, recovered from its pieces and scores.

SentencePiece joins, again and again, the adjacent pair whose joined text is the piece with the best score (Kudo and
Richardson 2018, "SentencePiece"; the leftmost pair of equals). The tokenizers library wants pairs in order of
preference instead. For each piece, list the pairs that make it up; rank by the piece's score.

Where a piece has several pairs, the order among them matters only if two can overlap, as "a"+"aa" and "aa"+"a" do in
"aaa". Joining inside a piece is not influenced by what stands around it (otherwise the piece would not come about), so
the pair that the rule itself forms from the piece's characters is the only one that ever becomes the piece: it goes
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

Pair = tuple[str, str]

WORST = float("-inf")


def recover_merges(pieces: Sequence[str], scores: Sequence[float]) -> list[Pair]:
    """`pieces[i]` has `scores[i]`; the best merge comes first, pieces of equal score go by index."""
    score_of = dict(zip(pieces, scores))
    longest_prefix = _longest_prefixes(score_of)
    merges: list[Pair] = []
    for index in sorted(range(len(pieces)), key=scores.__getitem__, reverse=True):  # stable
        piece = pieces[index]
        num_before = len(merges)
        prefix = longest_prefix[piece]
        while prefix:
            rest = piece[len(prefix) :]
            if rest in score_of:
                merges.append((prefix, rest))
            prefix = longest_prefix[prefix]
        if len(merges) > num_before + 1 and piece[0] in piece[1:]:
            pairs = merges[num_before:]
            if _may_overlap(pairs):
                merges[num_before:] = _natural_first(piece, pairs, score_of)
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


def _may_overlap(pairs: list[Pair]) -> bool:
    """Whether one pair's right half is another's left half."""
    return not {left for left, _ in pairs}.isdisjoint([right for _, right in pairs])


def _natural_first(piece: str, pairs: list[Pair], score_of: Mapping[str, float]) -> list[Pair]:
    """`pairs` with the one that joining the characters of `piece` ends in at the front."""
    symbols = list(piece)
    while len(symbols) > 2:
        joined = [score_of.get(left + right, WORST) for left, right in pairwise(symbols)]
        best = max(joined)
        if best == WORST:
            return pairs  # the rule never forms this piece
        index = joined.index(best)
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
    natural = (symbols[0], symbols[1])
    if natural not in pairs:
        return pairs
    return [natural, *(pair for pair in pairs if pair != natural)]
