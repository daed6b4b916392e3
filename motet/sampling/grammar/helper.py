"""The child process in which a client's grammar is tried first. Started by trial.py as a script; imports no torch.

Lines of JSON: the vocabulary comes first and is answered with {}; then each spec with {"grammar": ...}, the text for
`GuidanceBackend.compile`, or {"error": ...}. A spec that takes too much time or memory ends the process, and so does
the end of its input, that is of its parent. The trial's stack is a small part of a thread's in the engine.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

CPU_SECONDS = 0.8
MEMORY_BYTES = 1 << 29  # beyond what the process has when it waits for the first spec
STACK_BYTES = 1 << 20
LIMITS: dict[str, Any] = {"max_lexer_states": 50_000, "verbose_errors": False}

MAX_SPLIT = 256  # characters of a text that is the only one left, which may be very long: the next token is enough
LARGEST = 2**53 - 1  # bounds are compared as doubles: further out they are not exact
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # name -> schema
DATA = ("enum", "const", "default", "examples")
Encode = Callable[[str], list[int]]


class Tokens:
    """The vocabulary in the form that llguidance.LLTokenizer reads.

    Where the grammar leaves only one text to go on with, it is split as `encode` does, or by the longest tokens where
    there is none or where its tokens are not that text.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self, tokens: list[bytes], special_ids: list[int], eos_ids: list[int], encode: Encode | None = None
    ) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special_ids, eos_ids[0]
        self._encode = encode
        specials = set(special_ids)
        self._ids = {token: i for i, token in reversed([*enumerate(tokens)]) if token and i not in specials}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        text = text[:MAX_SPLIT]
        piece = text.encode()
        ids = self._encode(text) if self._encode else []
        is_text = all(i < len(self.tokens) and self._ids.get(self.tokens[i]) == i for i in ids)
        if is_text and b"".join(self.tokens[i] for i in ids) == piece:
            return ids
        ids = []
        while piece:
            size = next((n for n in range(min(self._longest, len(piece)), 0, -1) if piece[:n] in self._ids), 0)
            if not size:
                break
            ids.append(self._ids[piece[:size]])
            piece = piece[size:]
        return ids


def make_tokenizer(
    tokens: list[bytes], special_ids: list[int], eos_ids: list[int], encode: Encode | None = None
) -> Any:
    import llguidance

    wrapped: Any = Tokens(tokens, special_ids, eos_ids, encode)
    return llguidance.LLTokenizer(wrapped, n_vocab=len(tokens), eos_token=eos_ids)


def make_matcher(tokenizer: Any, grammar: str) -> Any:
    """Raises ValueError."""
    import llguidance

    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=llguidance.LLParserLimits(**LIMITS))
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def translate(spec: dict[str, Any]) -> str:
    """A spec as llguidance's grammar. Raises ValueError and more for specs that are wrong."""
    import llguidance

    kind, text = spec["kind"], spec["text"]
    if kind in ("json", "json_object"):
        schema = json.loads(text)
        settle_schema(schema, spec["additional_properties"])
        options: Any = {"whitespace_flexible": spec["any_whitespace"], "whitespace_pattern": spec["whitespace_pattern"]}
        return llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    if kind == "structural_tag":
        return translate_tags(json.loads(text))
    return llguidance.grammar_from(kind, text)


def translate_tags(tag: dict[str, Any]) -> str:
    import llguidance

    if not isinstance(tag.get("structures"), list) or not isinstance(tag.get("triggers"), list):
        raise ValueError("it needs the lists 'structures' (of begin, schema, end) and 'triggers'")
    tags = []
    for part in tag["structures"]:
        trigger = next((trigger for trigger in tag["triggers"] if part["begin"].startswith(trigger)), None)
        if not trigger:
            raise ValueError(f"no trigger begins {part['begin']!r}")
        settle_schema(part["schema"], True)
        tags.append(llguidance.StructTag(trigger=trigger, begin=part["begin"], grammar=part["schema"], end=part["end"]))
    return llguidance.StructTag.to_grammar(tags, assume_special=False)


def settle_schema(schema: Any, additional_properties: bool) -> None:
    """In place: bounds that are not exact as doubles become the largest exact ones, which only ever allows less."""
    for node in schemas(schema):
        for key in (*LOWER, *UPPER):
            value = node.get(key)
            if isinstance(value, (int, float)) and abs(value) > LARGEST:
                if (value > 0) == (key in LOWER):
                    raise ValueError(f"{key} {value} is too far out to be exact; the limit is {LARGEST}")
                node[key] = LARGEST if value > 0 else -LARGEST
        for value in values([node.get("const"), node.get("enum")]):
            if isinstance(value, int) and abs(value) > LARGEST:
                raise ValueError(f"{value} is too far out to be exact; the limit is {LARGEST}")
        if not additional_properties and "properties" in node:
            node.setdefault("additionalProperties", False)


def values(root: Any) -> Iterator[Any]:
    """All that is in `root`, however deep."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, (list, dict)):
            waiting += value.values() if isinstance(value, dict) else value


def schemas(root: Any) -> Iterator[dict[str, Any]]:
    """Every object in a schema that may be a schema; what is data or a name is not."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            yield node
            for key, value in node.items():
                if key in NAMED and isinstance(value, dict):
                    waiting += value.values()
                elif key not in DATA:
                    waiting.append(value)


def attempt(tokenizer: Any, spec: dict[str, Any]) -> dict[str, str]:
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # of this process's CPU time; nobody handles the signal
    try:
        grammar = translate(spec)
        matcher = make_matcher(tokenizer, grammar)
        matcher.compute_bitmask()
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return {"grammar": grammar}
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return {"error": "no text fits it" if reason.startswith("NoExtension") else reason}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    vocabulary = json.loads(source.readline())
    tokens = [token.encode("latin-1") for token in vocabulary["tokens"]]
    tokenizer = make_tokenizer(tokens, vocabulary["special_ids"], vocabulary["eos_ids"])
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer: dict[str, str] = {}
    while True:
        sink.write(json.dumps(answer).encode() + b"\n")
        sink.flush()
        line = source.readline()
        if not line:
            return
        answer = attempt(tokenizer, json.loads(line))


def main() -> None:
    sys.path.pop(0)  # this folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    import llguidance  # noqa: F401

    threading.stack_size(STACK_BYTES)
    with open(0, "rb") as source, open(1, "wb") as sink:
        thread = threading.Thread(target=serve, args=(source, sink))
        thread.start()
        thread.join()


if __name__ == "__main__":
    main()
