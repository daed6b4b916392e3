"""Masks, drafts and the helper process, on a vocabulary of bytes and a few longer tokens."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from motet.core.config import StructuredOutputsConfig
from motet.core.errors import InputError
from motet.core.structured import GrammarSpec, StructuredOutputsParams
from motet.sampling.grammar.grammars import NO_GRAMMARS, CompiledGrammars, Kept
from motet.sampling.grammar.guidance import GuidanceBackend
from motet.sampling.grammar.helper import LARGEST, settle_schema, translate
from motet.sampling.grammar.protocol import GrammarMatcher, Vocabulary
from motet.sampling.grammar.rows import RowGrammar
from motet.sampling.grammar.trial import Trial

EOS, OTHER_EOS = 256, 260
VOCABULARY = Vocabulary(
    tokens=[*(bytes([byte]) for byte in range(256)), b"</s>", b"ab", b"abc", b"12", b"<end>", b"", b""],
    special_ids=frozenset({EOS, OTHER_EOS}),
    eos_ids=frozenset({EOS, OTHER_EOS}),
    encode=lambda text: [0],  # never the text: it is split into the longest tokens
)
ENDS = {EOS, OTHER_EOS}


def spec(kind: str, text: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "text": text,
        "any_whitespace": True,
        "additional_properties": True,
        "whitespace_pattern": None,
    }


@pytest.fixture(scope="module")
def backend() -> GuidanceBackend:
    return GuidanceBackend(VOCABULARY)


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    trial = Trial(lambda: VOCABULARY)
    yield trial
    trial.close()


def matcher(backend: GuidanceBackend, regex: str) -> GrammarMatcher:
    return backend.compile(translate(spec("regex", regex))).matcher()


def ids(mask: np.ndarray) -> set[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[len(VOCABULARY.tokens) :].any() or (mask == -1).all()
    return set(bits.nonzero()[0].tolist())


def allowed(matcher: GrammarMatcher) -> set[int]:
    mask = np.full(VOCABULARY.num_words, -1, np.int32)
    matcher.fill(mask)
    return ids(mask)


def test_a_matcher_allows_what_the_expression_does(backend: GuidanceBackend) -> None:
    one = matcher(backend, "ab?c*")
    assert allowed(one) == {ord("a"), 257, 258}
    assert not one.advance(ord("b"))
    assert one.advance(257)
    assert allowed(one) == {ord("c")} | ENDS
    assert not one.is_complete
    assert one.advance(EOS)
    assert allowed(one) == ENDS
    assert one.is_complete
    assert not one.advance(ord("c"))


def test_a_complete_text_can_only_end(backend: GuidanceBackend) -> None:
    one = matcher(backend, "ab")
    assert not one.advance(EOS)
    assert one.advance(257)
    assert one.is_complete
    assert allowed(one) == ENDS


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_rollback(backend: GuidanceBackend, count: int) -> None:
    one, path = matcher(backend, "[ab]{3}"), [ord("a"), ord("b"), ord("a"), EOS]
    seen = []
    for token_id in path:
        seen.append(allowed(one))
        assert one.advance(token_id)
    one.rollback(count)
    assert allowed(one) == seen[-count]
    assert [one.advance(token_id) for token_id in path[-count:]] == [True] * count


def test_texts_of_one_grammar_do_not_know_of_each_other(backend: GuidanceBackend) -> None:
    grammar = backend.compile(translate(spec("regex", "[ab]c")))
    one, other = grammar.matcher(), grammar.matcher()
    assert one.advance(ord("a"))
    assert allowed(one) == {ord("c")}
    assert allowed(other) == {ord("a"), ord("b")}


# Rows -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def row(pool: ThreadPoolExecutor, backend: GuidanceBackend, regex: str) -> RowGrammar:
    return RowGrammar(pool, lambda: matcher(backend, regex), VOCABULARY.num_words)


def test_a_row_has_a_mask_after_each_draft(pool: ThreadPoolExecutor, backend: GuidanceBackend) -> None:
    output = np.array([ord(char) for char in "abbc"], np.int32)
    one = row(pool, backend, "ab*c")
    one.expect(output, 1, 4)
    assert ids(one.at(1).mask) == {ord("b"), ord("c")} == ids(one.at(2).mask) == ids(one.at(3).mask)
    assert ids(one.at(4).mask) == ENDS
    assert [one.at(n).is_complete for n in (1, 2, 3, 4)] == [False, False, False, True]
    # All drafts were rejected, and a "c" came in their place.
    one.expect(np.array([ord("a"), ord("c")], np.int32), 2, 2)
    assert ids(one.at(2).mask) == ENDS


def test_after_a_forbidden_draft_nothing_is_asked_for(pool: ThreadPoolExecutor, backend: GuidanceBackend) -> None:
    one = row(pool, backend, "ab*c")
    one.expect(np.array([ord(char) for char in "axb"], np.int32), 1, 3)
    assert ids(one.at(1).mask) == {ord("b"), ord("c")}
    assert (one.at(2).mask == -1).all()
    assert (one.at(3).mask == -1).all()
    assert one.at(3).error is None
    one.expect(np.array([ord(char) for char in "abb"], np.int32), 3, 3)
    assert ids(one.at(3).mask) == {ord("b"), ord("c")}


def test_a_new_row_catches_up(pool: ThreadPoolExecutor, backend: GuidanceBackend) -> None:
    one = row(pool, backend, "ab*c")
    one.expect(np.array([257, ord("b"), ord("b")], np.int32), 3, 3)
    assert ids(one.at(3).mask) == {ord("b"), ord("c")}


def test_output_that_has_changed_is_read_again(pool: ThreadPoolExecutor, backend: GuidanceBackend) -> None:
    one = row(pool, backend, "(ab*|cd*)e")
    for text, follows in [
        ("abb", "be"),
        ("ab", "be"),
        ("cd", "de"),
        ("c", "de"),
        ("a", "be"),
        ("", "ac"),
        ("cdde", ""),
    ]:
        output = np.array([ord(char) for char in text], np.int32)
        one.expect(output, len(text), len(text))
        found = ids(one.at(len(text)).mask) - {257, 258}
        assert found == ({ord(char) for char in follows} if follows else ENDS)


def test_output_that_does_not_fit_is_the_rows_error(pool: ThreadPoolExecutor, backend: GuidanceBackend) -> None:
    one = row(pool, backend, "ab")
    one.expect(np.array([ord("x")], np.int32), 1, 1)
    assert "does not follow" in str(one.at(1).error)
    assert not one.at(1).mask.any()


def test_a_grammar_that_does_not_compile_is_the_rows_error(pool: ThreadPoolExecutor, backend: GuidanceBackend) -> None:
    one = row(pool, backend, "[")
    one.expect(np.zeros(0, np.int32), 0, 0)
    assert "does not compile" in str(one.at(0).error)


# The helper -----------------------------------------------------------------------------------------------------------

CHAIN = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(5000)) + 'r5000 ::= "x"\n'


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("regex", "[", "unclosed character class"),
        ("regex", "(?=a)b", "look-ahead"),
        ("json", '{"type": "nope"}', "Invalid type: nope"),
        ("json", '{"$ref": "#/missing"}', "/missing"),
        ("json", '{"minimum": 5, "maximum": 1, "type": "integer"}', "Unsatisfiable"),
        ("json", f'{{"type": "integer", "minimum": {2**63}}}', f"the limit is {LARGEST}"),
        ("json", f'{{"enum": [1, [{2**53 + 1}]]}}', f"the limit is {LARGEST}"),
        ("json", '{"properties": 3}', "properties"),
        ("grammar", "start: nothing", "nothing"),
        ("grammar", "start: start", "no text fits"),
        ("grammar", CHAIN, "too complex"),
        ("grammar", CHAIN.replace(" ::=", ":").replace("root", "start"), "too complex"),
        ("structural_tag", "{}", "structures"),
        (
            "structural_tag",
            '{"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["b"]}',
            "no trigger",
        ),
        ("structural_tag", '{"structures": [{}], "triggers": ["b"]}', "begin"),
    ],
    ids=lambda value: value[:30],
)
def test_a_bad_grammar_is_refused_soon(trial: Trial, kind: str, text: str, message: str) -> None:
    trial.translate(GrammarSpec("regex", "a"))  # there is a helper
    start = time.perf_counter()
    with pytest.raises(InputError, match=message):
        trial.translate(GrammarSpec(kind, text))
    assert time.perf_counter() - start < 3
    assert trial.translate(GrammarSpec("regex", "a+"))


def test_the_helper_stays_and_is_replaced_when_it_has_died(trial: Trial) -> None:
    trial.translate(GrammarSpec("regex", "a"))
    first: Any = trial._process
    trial.translate(GrammarSpec("regex", "b"))
    assert trial._process is first
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert trial.translate(GrammarSpec("regex", "c"))
    second: Any = trial._process
    assert second.pid != first.pid


def test_a_helper_that_hangs_is_ended(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    trial.translate(GrammarSpec("regex", "a"))
    process: Any = trial._process
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)  # it takes a moment until all its threads stand still
    monkeypatch.setattr("motet.sampling.grammar.trial.WALL_SECONDS", 0.1)
    with pytest.raises(InputError, match="too complex"):
        trial.translate(GrammarSpec("regex", "b"))
    assert process.returncode == -signal.SIGKILL


def test_the_helper_ends_with_its_input() -> None:
    trial = Trial(lambda: VOCABULARY)
    trial.translate(GrammarSpec("regex", "a"))
    process: Any = trial._process
    with open(f"/proc/{process.pid}/maps", encoding="ascii") as maps:
        assert "libtorch" not in maps.read()
    process.stdin.close()
    assert process.wait(timeout=10) == 0


def test_bounds_beyond_doubles_allow_less() -> None:
    schema: dict[str, Any] = {
        "maximum": 2**63,
        "exclusiveMinimum": -(2**70),
        "default": {"maximum": 2**63},
        "const": {"maximum": 1e300},
        "properties": {"maximum": {"maximum": 1e300}, "enum": {"minimum": -(2**60)}, "a": {"maximum": 7}},
        "anyOf": [{"maximum": LARGEST}, {"exclusiveMaximum": True}],
    }
    settle_schema(schema, additional_properties=True)
    assert schema == {
        "maximum": LARGEST,
        "exclusiveMinimum": -LARGEST,
        "default": {"maximum": 2**63},
        "const": {"maximum": 1e300},
        "properties": {"maximum": {"maximum": LARGEST}, "enum": {"minimum": -LARGEST}, "a": {"maximum": 7}},
        "anyOf": [{"maximum": LARGEST}, {"exclusiveMaximum": True}],
    }


def test_additional_properties_can_be_off_everywhere() -> None:
    schema: dict[str, Any] = {
        "properties": {"a": {"properties": {}}, "b": {"properties": {}, "additionalProperties": {}}}
    }
    settle_schema(schema, additional_properties=False)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["a"]["additionalProperties"] is False
    assert schema["properties"]["b"]["additionalProperties"] == {}


# All together ---------------------------------------------------------------------------------------------------------


def test_a_spec_is_tried_once_and_a_grammar_compiled_once() -> None:
    class Counting(GuidanceBackend):
        num_compiled = 0

        def compile(self, grammar: str) -> Any:
            Counting.num_compiled += 1
            return super().compile(grammar)

    grammars = CompiledGrammars(StructuredOutputsConfig(), lambda: VOCABULARY, Counting)
    tried: list[GrammarSpec] = []
    translate_once = grammars._trial.translate
    grammars._trial.translate = lambda spec: (tried.append(spec), translate_once(spec))[1]  # type: ignore[method-assign]
    good, bad = StructuredOutputsParams(regex="a+"), StructuredOutputsParams(regex="[")
    texts = {grammars.check(good) for _ in range(3)}
    for _ in range(3):
        with pytest.raises(InputError, match="unclosed"):
            grammars.check(bad)
    one = grammars.open(texts.pop())
    one.expect(np.zeros(0, np.int32), 0, 0)
    assert ids(one.at(0).mask) == {ord("a")}
    grammars.close()
    assert (len(tried), Counting.num_compiled) == (2, 1)


def test_the_least_recently_used_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.sampling.grammar.grammars.NUM_KEPT", 2)
    made: list[str] = []
    kept: Kept[str, str] = Kept()
    for key in "abacab":
        assert kept.get(key, lambda key: made.append(key) or key) == key  # type: ignore[func-returns-value]
    assert "".join(made) == "abcb"


def test_no_grammars_say_why() -> None:
    with pytest.raises(InputError, match="need a tokenizer"):
        NO_GRAMMARS.check(StructuredOutputsParams(regex="a"))
