from __future__ import annotations

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from motet.text.bpe_merges import recover_merges
from motet.text.sentencepiece import make_sentencepiece
from tests.text.packaged import ODD_TEXTS
from tests.tokenizers_tiny import LINES


def naive_pieces(text: str, score_of: dict[str, float]) -> list[str]:
    """SentencePiece's rule: join the best adjacent pair, the leftmost of equals, until none is left."""
    symbols = list(text)
    while True:
        joined = [
            (score_of[symbols[i] + symbols[i + 1]], -i)
            for i in range(len(symbols) - 1)
            if symbols[i] + symbols[i + 1] in score_of
        ]
        if not joined:
            return symbols
        at = -max(joined)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def trained_pieces(rng: random.Random, alphabet: str, count: int) -> list[str]:
    """A vocabulary as training makes it: each new piece joins two that are there, and is worse than all before."""
    pieces = list(alphabet)
    while len(pieces) < count:
        piece = rng.choice(pieces) + rng.choice(pieces)
        if piece not in pieces and len(piece) <= 12:
            pieces.append(piece)
    return pieces


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), alphabet=st.sampled_from(["a", "ab", "abc"]), text=st.text("abc", max_size=30))
def test_merges_follow_sentencepiece(seed: int, alphabet: str, text: str) -> None:
    """Few letters make many pieces with several pairs, as "aaa" and "abaab" have."""
    pieces = trained_pieces(random.Random(seed), alphabet, len(alphabet) + (8 if alphabet == "a" else 25))
    scores = [-float(index) for index in range(len(pieces))]
    text = "".join(char if char in alphabet else "a" for char in text)
    backend = Tokenizer(
        models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=recover_merges(pieces, scores))
    )
    assert [pieces[index] for index in backend.encode(text).ids] == naive_pieces(text, dict(zip(pieces, scores)))


def test_order_is_by_score_then_index() -> None:
    pieces = ["a", "b", "ab", "ba", "abb"]
    assert recover_merges(pieces, [0, 0, -2, -1, -3]) == [("b", "a"), ("a", "b"), ("ab", "b")]
    assert recover_merges(pieces, [0, 0, -1, -1, -3]) == [("a", "b"), ("b", "a"), ("ab", "b")]


def test_pieces_that_cannot_be_made_have_no_merge() -> None:
    assert recover_merges(["a", "xyz", "axyz"], [0, -1, -2]) == [("a", "xyz")]
    assert recover_merges([], []) == []


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_ids_equal_the_sentencepiece_library(add_space_prefix: bool) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=520,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_space_prefix,
        split_by_whitespace=False,
        num_threads=1,
        minloglevel=2,
    )
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [oracle.id_to_piece(index) for index in range(oracle.get_piece_size())]
    scores = [oracle.get_score(index) for index in range(oracle.get_piece_size())]
    backend = make_sentencepiece(pieces, scores, "<unk>", add_space_prefix)
    for text in [*LINES, *ODD_TEXTS]:
        if "<" not in text and "\x01" not in text and text:
            assert backend.encode(text).ids == oracle.encode(text), text
