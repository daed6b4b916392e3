"""Grammars among the other sampling parameters of a row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from motet.core.config import StructuredOutputsConfig
from motet.core.params import RowSampling
from motet.core.structured import StructuredOutputsParams
from motet.ops.cpu.backend import CpuOps, is_available
from motet.ops.reference.greedy import greedy
from motet.sampling.columns import SamplingColumns, TokenHistory
from motet.sampling.cpu import CpuSampler
from motet.sampling.grammar.grammars import CompiledGrammars
from motet.sampling.grammar.guidance import GuidanceBackend
from motet.sampling.grammar.protocol import Vocabulary
from motet.sampling.sampler import Sampler
from motet.sampling.steps import FollowGrammar
from tests.sampling.rows import random_logits

EOS = 100
V = 103  # three words and a part, two ids without bytes
TOKENS = [*(bytes([byte]) for byte in range(32, 132)), b"</s>", b"", b""]
VOCABULARY = Vocabulary(TOKENS, frozenset({EOS}), frozenset({EOS}), lambda text: [])
SAMPLERS = [Sampler(greedy), *([CpuSampler(CpuOps().target)] if is_available() else [])]


@pytest.fixture(scope="module")
def grammars() -> Iterator[CompiledGrammars]:
    grammars = CompiledGrammars(StructuredOutputsConfig(), lambda: VOCABULARY, GuidanceBackend)
    yield grammars
    grammars.close()


def ids(text: str) -> list[int]:
    return [ord(char) - 32 for char in text]


def history(*rows: tuple[str, str]) -> TokenHistory:
    """Prompt and output of each row."""
    token_ids = np.full((len(rows), 32), -9, np.int32)
    for row, (prompt, output) in enumerate(rows):
        token_ids[row, : len(prompt) + len(output)] = ids(prompt + output)
    return TokenHistory(token_ids, np.array([len(prompt) for prompt, _ in rows], np.int32))


def test_follow_grammar_forbids_cleared_bits() -> None:
    logits, bits = random_logits(0, 5, V), torch.rand(2, 128, generator=torch.Generator().manual_seed(1)) < 0.5
    masks = torch.from_numpy(np.packbits(bits.numpy(), axis=1, bitorder="little").view(np.int32))
    edited = logits.clone()
    FollowGrammar(torch.tensor([3, 1]), masks).apply(edited)
    expected = logits.clone()
    expected[[3, 1]] = torch.where(bits[:, :V], logits[[3, 1]], -torch.inf)
    assert edited.equal(expected)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("is_expected", [False, True])
def test_each_position_of_a_drafted_row_follows_its_grammar(
    grammars: CompiledGrammars, sampler: Sampler, temperature: float, is_expected: bool
) -> None:
    columns = SamplingColumns(3, V, grammars=grammars)
    grammar = grammars.check(StructuredOutputsParams(regex="a[bc]{2,3}d"))
    other = grammars.check(StructuredOutputsParams(regex="[0-9]+"))
    columns.set(0, RowSampling(temperature=temperature, grammar=grammar, min_tokens=9, suppressed_until_min=(EOS,)))
    columns.set(1, RowSampling(temperature=temperature))
    columns.set(2, RowSampling(temperature=temperature, grammar=other))
    rows, known = np.array([0, 0, 0, 1, 0, 2]), history(("xyz", "abbd"), ("xy", ""), ("x", "1"))
    positions = np.array([4, 5, 6, 2, 7, 2])  # row 0 has one settled output token and three drafts
    if is_expected:
        columns.expect(np.arange(3), np.array([4, 2, 2]), np.array([7, 2, 2]), np.array([1, 1, 1]), known)
    sampled = sampler.sample(random_logits(7, 6, V), columns.view(rows, positions, known))
    assert sampled.errors == [None] * 6
    for entry, expected in [(0, "bc"), (1, "bc"), (2, "bcd"), (5, "0123456789")]:
        assert sampled.token_ids[entry] in [*ids(expected), *([EOS] if entry == 5 else [])]
    assert sampled.token_ids[4] == EOS
    assert (
        sampled.token_ids == SAMPLERS[0].sample(random_logits(7, 6, V), columns.view(rows, positions, known)).token_ids
    )

    # The first draft was rejected: a "c" stands there.
    known = history(("xyz", "acb"), ("xy", ""), ("x", "1"))
    sampled = sampler.sample(random_logits(8, 1, V), columns.view(np.array([0]), np.array([6]), known))
    assert sampled.token_ids[0] in ids("bcd")


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_a_row_that_left_its_grammar_says_so(grammars: CompiledGrammars, sampler: Sampler) -> None:
    columns = SamplingColumns(2, V, grammars=grammars)
    columns.set(0, RowSampling(temperature=0.0, grammar=grammars.check(StructuredOutputsParams(regex="ab"))))
    columns.set(1, RowSampling(temperature=0.0))
    known, logits = history(("x", "z"), ("x", "z")), random_logits(3, 2, V)
    sampled = sampler.sample(logits, columns.view(np.arange(2), np.array([2, 2]), known))
    assert sampled.token_ids == [-1, int(logits[1].argmax())]
    assert "does not follow" in str(sampled.errors[0])
    columns.clear(0)
    columns.set(0, RowSampling(temperature=0.0))
    assert sampler.sample(logits, columns.view(np.arange(2), np.array([2, 2]), known)).errors == [None, None]
