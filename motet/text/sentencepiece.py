"""A tokenizer from a SentencePiece BPE vocabulary: pieces, scores, and characters that fall back to bytes."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, normalizers

from motet.text.bpe_merges import recover_merges

SPACE = "▁"  # how a space is written in a piece


def make_sentencepiece(
    pieces: Sequence[str], scores: Sequence[float], unk_token: str | None, add_space_prefix: bool
) -> tokenizers.Tokenizer:
    """Special tokens and BOS rules are left to the caller.

    add_space_prefix: every stretch of text gets a space in front, which decoding takes off the start again.
    """
    model = models.BPE(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=recover_merges(pieces, scores),
        unk_token=unk_token,
        fuse_unk=False,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    escape = normalizers.Replace(" ", SPACE)
    to_text = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), escape])
        backend.decoder = decoders.Sequence([*to_text, decoders.Strip(" ", 1, 0)])
    else:
        backend.normalizer = escape
        backend.decoder = decoders.Sequence(to_text)
    return backend
