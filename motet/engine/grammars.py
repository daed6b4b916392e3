"""Which grammars an engine can have."""

from __future__ import annotations

from functools import partial

from motet.core.config import StructuredOutputsConfig
from motet.core.errors import InputError
from motet.sampling.grammar.grammars import NO_GRAMMARS, CompiledGrammars, Grammars, NoGrammars
from motet.sampling.grammar.protocol import GrammarBackend, Vocabulary
from motet.text.tokenizer import Tokenizer


def choose_grammars(
    config: StructuredOutputsConfig, tokenizer: Tokenizer | None, vocab_size: int, eos_ids: frozenset[int]
) -> Grammars:
    """Grammars over the model's `vocab_size` tokens; nothing is built before a request asks."""
    if tokenizer is None:
        return NO_GRAMMARS
    pieces = tokenizer.token_bytes
    if pieces is None:
        return NoGrammars("are not supported with this tokenizer: its tokens do not stand for bytes")
    eos_ids = frozenset(token_id for token_id in eos_ids if token_id < vocab_size)
    if not eos_ids:
        return NoGrammars("need a model with an EOS token, which ends the answer")

    def vocabulary() -> Vocabulary:
        special_ids = frozenset(token_id for token_id in tokenizer.special_ids | eos_ids if token_id < vocab_size)
        tokens = [pieces[token_id] for token_id in range(vocab_size)]
        return Vocabulary(tokens, special_ids, eos_ids, partial(tokenizer.encode, add_special_tokens=False))

    return CompiledGrammars(config, vocabulary, make_guidance)


def make_guidance(vocabulary: Vocabulary) -> GrammarBackend:
    try:
        from motet.sampling.grammar.guidance import GuidanceBackend

        return GuidanceBackend(vocabulary)
    except ImportError as error:
        raise InputError(f"structured_outputs need llguidance: {error}; pip install llguidance") from None
