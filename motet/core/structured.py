"""Structured output: what a client may ask for, and the checks that need no compiler.

Nothing here recurses over what the client sent: its nesting is measured before anything parses it.
"""

from __future__ import annotations

import json as jsonlib
import re
from typing import Any

import msgspec

from motet.core.errors import InputError
from motet.core.fields import settle_fields

MAX_CHARACTERS = 1 << 18  # of a schema, expression or grammar
MAX_DEPTH = 100  # of brackets within brackets
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

# What a bracket does not count in: JSON's strings; of a grammar its literals, too; classes of an expression.
STRING = r'"(?:[^"\\]|\\.)*"'
CLASS = r"\[(?:[^\]\\]|\\.)*\]"
SKIPPED = {
    "json": re.compile(STRING, re.DOTALL),
    "regex": re.compile(rf"\\.|{CLASS}", re.DOTALL),
    "grammar": re.compile(rf"{STRING}|\\.|{CLASS}", re.DOTALL),
}


class GrammarSpec(msgspec.Struct, frozen=True):
    """One kind of KINDS with its text (for `choice` a JSON list), and how JSON may be written; hashable."""

    kind: str
    text: str
    any_whitespace: bool = True
    additional_properties: bool = True
    whitespace_pattern: str | None = None


class StructuredOutputsParams(msgspec.Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """What the answer must look like: exactly one of the first six; names and meanings are vLLM's.

    json: a JSON Schema, as text or as an object; regex: an expression that the whole answer matches; choice: one of
    these texts; grammar: Lark, or GBNF (`root ::= ...`); json_object: any JSON object; structural_tag: JSON text with
    `structures` and `triggers`. Raises InputError.
    """

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        settle_fields(self, InputError)
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise InputError(f"structured_outputs needs exactly one of {', '.join(KINDS)}; got {given or 'none'}")
        check_text(self.spec())
        if self.whitespace_pattern is not None:
            check_text(GrammarSpec("regex", self.whitespace_pattern), "whitespace_pattern")

    def spec(self, any_whitespace: bool = True, additional_properties: bool = True) -> GrammarSpec:
        """The one that is given. Arguments: what the engine allows for requests that do not forbid it."""
        kind = next(name for name in KINDS if getattr(self, name) not in (None, False))
        return GrammarSpec(
            kind=kind,
            text=self._text(kind),
            any_whitespace=any_whitespace and not self.disable_any_whitespace,
            additional_properties=additional_properties and not self.disable_additional_properties,
            whitespace_pattern=self.whitespace_pattern,
        )

    def _text(self, kind: str) -> str:
        value = getattr(self, kind)
        if kind == "json_object":
            return '{"type": "object"}'
        if kind == "choice":
            if not value or not all(value):
                raise InputError("choice must be a list of texts, none of them empty")
            return jsonlib.dumps(value)
        if kind != "json" or isinstance(value, str):
            return str(value)
        try:
            return jsonlib.dumps(value, ensure_ascii=False)
        except RecursionError:
            raise InputError(f"json is nested more than {MAX_DEPTH} deep") from None
        except (TypeError, ValueError) as error:
            raise InputError(f"json must be a JSON Schema, as text or as an object: {error}") from None


def check_text(spec: GrammarSpec, name: str | None = None) -> None:
    """Raises InputError for text that is too long, too deep, not Unicode or, where it is to be JSON, not JSON."""
    name, text = name or spec.kind, spec.text
    if not text:
        raise InputError(f"{name} must not be empty")
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{name} has {len(text)} characters; at most {MAX_CHARACTERS} are allowed")
    try:
        text.encode()
    except UnicodeError as error:
        raise InputError(f"{name} is not valid Unicode text: {error}") from None
    depth = max_depth(SKIPPED.get(spec.kind, SKIPPED["json"]).sub("", text))
    if depth > MAX_DEPTH:
        raise InputError(f"{name} is nested {depth} deep; at most {MAX_DEPTH} is allowed")
    if spec.kind in ("json", "structural_tag"):
        try:
            value = jsonlib.loads(text)
        except ValueError as error:
            raise InputError(f"{name} is not valid JSON: {error}") from None
        if not isinstance(value, dict):
            raise InputError(f"{name} must be a JSON object, got {text[:80]!r}")


def max_depth(text: str) -> int:
    """How deep brackets of any kind are nested; those that do not match only ever make it more."""
    depth = deepest = 0
    for bracket in re.findall(r"[(\[{}\])]", text):
        if bracket in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif depth:
            depth -= 1
    return deepest
