"""Logits processors: what users change about the scores, by code of their own.

A processor is a callable `(logits, rows)`. It edits `logits` float32 [N, V] in place, one row for each of `rows`. It
comes after allowed ids, bad words, min_tokens and biases and before the penalties, also for greedy requests. What it
does must depend on the tokens and the request's arguments alone: rows come in any order and company, drafts that are
rejected later are rows as well, and a preempted request is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from motet.core.errors import ConfigError
from motet.core.logs import get_logger

ENTRY_POINTS = "motet.logits_processors"
TokensOf = Callable[[int], npt.NDArray[np.int32]]


@dataclass(frozen=True)
class LogitsRow:
    """What a row of scores belongs to. The token ids are int32 and read-only: those before the one to be chosen.

    extra_args: of the request's SamplingParams; state: a dict of the request and processor, empty at first and again
    after a preemption
    """

    prompt_token_ids: npt.NDArray[np.int32]
    output_token_ids: npt.NDArray[np.int32]
    extra_args: dict[str, Any]
    state: dict[Any, Any]


class LogitsProcessor(Protocol):
    """May also have `wants(extra_args) -> bool`, which says whether it is for a request; else it is for all.

    What `wants` raises refuses the request, what the call raises ends the requests of its rows; others go on.
    """

    def __call__(self, logits: Tensor, rows: Sequence[LogitsRow], /) -> None: ...


@dataclass(frozen=True)
class Processed:
    """A step of the sampler: `processor` on some rows of the logits."""

    processor: LogitsProcessor
    indices: list[int]
    rows: list[LogitsRow]

    def apply(self, logits: Tensor) -> None:
        scores = logits[self.indices]
        try:
            self.processor(scores, self.rows)
        except Exception:
            get_logger().exception("a logits processor failed; the requests of its %d rows end", len(self.rows))
            scores.fill_(float("nan"))
        logits[self.indices] = scores


@dataclass
class Processors:
    """Which processor is for which row, and what it keeps there."""

    all: tuple[LogitsProcessor, ...] = ()
    args: dict[int, dict[str, Any]] = field(default_factory=dict)
    states: dict[int, dict[int, dict[Any, Any]]] = field(default_factory=dict)  # row -> processor's index -> state

    def admit(self, row: int, extra_args: dict[str, Any]) -> bool:
        """Whether some processor is for the row."""
        chosen = [index for index, processor in enumerate(self.all) if wants(processor, extra_args)]
        if chosen:
            self.args[row], self.states[row] = extra_args, {index: {} for index in chosen}
        return bool(chosen)

    def clear(self, row: int) -> None:
        self.args.pop(row, None)
        self.states.pop(row, None)

    def steps(self, rows: Iterable[int], prompt: TokensOf, output: TokensOf) -> list[Processed]:
        """rows: of the logits that are edited; prompt, output: the tokens of the one at an index."""
        found: dict[int, Processed] = {}
        for index, row in enumerate(rows):
            for place, state in self.states.get(row, {}).items():
                step = found.setdefault(place, Processed(self.all[place], [], []))
                step.indices.append(index)
                tokens = prompt(index), output(index)
                for ids in tokens:
                    ids.flags.writeable = False
                step.rows.append(LogitsRow(*tokens, self.args[row], state))
        return [found[place] for place in sorted(found)]


def wants(processor: LogitsProcessor, extra_args: dict[str, Any]) -> bool:
    asked = getattr(processor, "wants", None)
    return asked is None or bool(asked(extra_args))


def load_processors(wanted: Sequence[Any]) -> tuple[LogitsProcessor, ...]:
    """Each is a callable, a class of such (made without arguments), "module:name", or the name of an installed entry
    point of the group `motet.logits_processors`. Raises ConfigError."""
    return tuple(_load(item) for item in wanted)


def _load(item: Any) -> LogitsProcessor:
    found = _named(item) if isinstance(item, str) else item
    found = found() if isinstance(found, type) else found
    if not callable(found):
        raise ConfigError(f"logits_processors: {item!r} is not callable; it must take (logits, rows)")
    processor: LogitsProcessor = found
    return processor


def _named(name: str) -> Any:
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            return getattr(import_module(module), attribute)
        (point,) = entry_points(group=ENTRY_POINTS, name=name)
        return point.load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"logits_processors: {name!r} cannot be found ({error}); give 'module:name' or the name of an entry point "
            f"of the group {ENTRY_POINTS}"
        ) from None
