"""Sampling parameters of the live rows, and what one step needs of them.

`SamplingColumns` is owned by the persistent batch, which calls `set` at admission and `clear` when a row is freed.
Everything that depends on the tokens so far is worked out anew in `view`, from the token history: after a preemption
or a rejected draft there is nothing to rewind.

Ids outside the vocabulary cannot be drawn: in stop ids, allowed ids and biases they are ignored, a bad word that
contains one never occurs. Bad words, presence and frequency look at the output only, repetition at prompt and output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.core.params import RowSampling
from motet.sampling.grammar.grammars import NO_GRAMMARS, Grammars
from motet.sampling.grammar.rows import NextTokens, RowGrammar
from motet.sampling.noise import as_int64, stream_keys
from motet.sampling.processors import LogitsProcessor, Processors
from motet.sampling.steps import (
    AddBias,
    AllowOnly,
    FollowGrammar,
    Forbid,
    LogitsStep,
    MinP,
    PenaliseOutput,
    PenaliseRepetition,
    Temperature,
    TopK,
    TopP,
)

IntArray = npt.NDArray[np.int64]
NOT_ASKED = -1
INT64_MAX = 2**63 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)

ROW = np.dtype(
    [
        ("is_greedy", np.bool_),
        ("is_edited", np.bool_),  # something may change the logits before the greedy choice
        ("temperature", np.float32),
        ("log_min_p", np.float32),
        ("top_k", np.int64),  # vocab_size or more: all
        ("top_p", np.float64),
        ("repetition", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("seed", np.int64),
        ("min_tokens", np.int64),
        ("num_logprobs", np.int64),
    ],
    align=True,
)


class TokenHistory(NamedTuple):
    """token_ids: int32 [max_rows, max_len], the row's prompt and then its output; prompt_len: int32 [max_rows]."""

    token_ids: npt.NDArray[np.int32]
    prompt_len: npt.NDArray[np.int32]


@dataclass(frozen=True)
class SamplingView:
    """What `Sampler.sample` needs for one step: L entries, one per logits row.

    plain: int64 [.], greedy entries that nothing edits. worked: int64 [W], the others, drawn ones first. Steps address
    rows of `logits[worked]`: `edits` all of them, `filters` the first `num_drawn`, which also have `keys` (int64) and
    their records `drawn` (ROW).
    num_logprobs: entry -> how many of the likeliest tokens it reports, for those that asked. refused: entry -> why its
    grammar leaves no token.
    """

    num_entries: int
    vocab_size: int
    plain: Tensor
    worked: Tensor
    num_drawn: int
    keys: Tensor
    drawn: npt.NDArray[Any]
    edits: tuple[LogitsStep, ...]
    num_logprobs: dict[int, int]
    refused: dict[int, str] = field(default_factory=dict)

    @property
    def filters(self) -> tuple[LogitsStep, ...]:
        return _filters(self.drawn, self.vocab_size)

    @classmethod
    @lru_cache(maxsize=64)
    def of_plain(cls, num_entries: int, vocab_size: int) -> SamplingView:
        """Where all that is wanted is the likeliest token of each row. Kept: making one takes as long as using it."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(num_entries, vocab_size, torch.arange(num_entries), none, 0, none, np.zeros(0, ROW), (), {})


@dataclass(frozen=True)
class BadWords:
    """Ids that may never come, and for longer words: last-but-one id -> (all ids but the last, the last)."""

    single_ids: IntArray
    longer: dict[int, list[tuple[list[int], int]]]

    @classmethod
    def build(cls, words: Iterable[tuple[int, ...]], vocab_size: int) -> BadWords:
        possible = [list(word) for word in words if word and all(0 <= token_id < vocab_size for token_id in word)]
        longer: dict[int, list[tuple[list[int], int]]] = {}
        for *prefix, last_id in possible:
            if prefix:
                longer.setdefault(prefix[-1], []).append((prefix, last_id))
        return cls(_int_array(word[0] for word in possible if len(word) == 1), longer)

    def forbidden_after(self, output: npt.NDArray[np.int32]) -> IntArray:
        """Ids that would complete a bad word after `output`, int32 [num_outputs]."""
        candidates = self.longer.get(int(output[-1]), ()) if len(output) else ()
        matched = [last_id for prefix, last_id in candidates if output[-len(prefix) :].tolist() == prefix]
        return np.concatenate([self.single_ids, _int_array(matched)]) if matched else self.single_ids


@dataclass
class SparseColumns:
    """Parameters that few rows have: row -> ids."""

    allowed: dict[int, IntArray] = field(default_factory=dict)
    bad_words: dict[int, BadWords] = field(default_factory=dict)
    suppressed: dict[int, IntArray] = field(default_factory=dict)  # until min_tokens outputs
    num_prompt_logprobs: dict[int, int] = field(default_factory=dict)
    bias_ids: dict[int, IntArray] = field(default_factory=dict)
    bias: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    grammar: dict[int, RowGrammar] = field(default_factory=dict)

    def clear(self, row: int) -> None:
        for column in vars(self).values():
            column.pop(row, None)


@dataclass(frozen=True)
class Work:
    """The worked entries of one step. rows, positions: int64 [W]; columns: ROW [W].

    next_tokens: index in the work -> what its grammar allows, for those that have one.
    """

    rows: IntArray
    positions: IntArray
    columns: npt.NDArray[Any]
    history: TokenHistory
    vocab_size: int
    next_tokens: dict[int, NextTokens] = field(default_factory=dict)

    def having(self, column: dict[int, Any]) -> list[tuple[int, int]]:
        """(index in the work, row) of the entries that have a value in a sparse column."""
        return [(n, row) for n, row in enumerate(self.rows.tolist()) if row in column] if column else []

    def num_outputs(self, n: int) -> int:
        return int(self.positions[n] - self.history.prompt_len[self.rows[n]])

    def prompt(self, n: int) -> npt.NDArray[np.int32]:
        row = self.rows[n]
        return self.history.token_ids[row, : self.history.prompt_len[row]]

    def output(self, n: int) -> npt.NDArray[np.int32]:
        row = self.rows[n]
        return self.history.token_ids[row, self.history.prompt_len[row] : self.positions[n]]

    def tokens(self, work_rows: IntArray, output_only: bool) -> tuple[IntArray, IntArray]:
        """(index in the work, token id) of every token before the position, of the given entries."""
        rows, positions = self.rows[work_rows], self.positions[work_rows]
        token_ids = self.history.token_ids[rows, : positions.max()].astype(np.int64)
        at = np.arange(token_ids.shape[1])
        is_meant = (at < positions[:, None]) & (token_ids >= 0) & (token_ids < self.vocab_size)
        if output_only:
            is_meant &= at >= self.history.prompt_len[rows][:, None]
        return work_rows[is_meant.nonzero()[0]], token_ids[is_meant]


class SamplingColumns:
    """One record per row of the persistent batch; `sparse` holds what few rows have."""

    def __init__(
        self,
        max_rows: int,
        vocab_size: int,
        processors: Sequence[LogitsProcessor] = (),
        grammars: Grammars = NO_GRAMMARS,
    ) -> None:
        self.vocab_size = vocab_size
        self._processors = Processors(tuple(processors))
        self._grammars = grammars
        self._records = np.zeros(max_rows, dtype=ROW)
        self._not_plain: set[int] = set()  # rows that want more than their likeliest token
        self._sparse = SparseColumns()

    def set(self, row: int, sampling: RowSampling) -> None:
        """Take over `row`, whatever was there."""
        self.clear(row)
        is_known = range(self.vocab_size).__contains__
        if sampling.allowed_token_ids is not None:
            self._sparse.allowed[row] = _int_array(filter(is_known, sampling.allowed_token_ids))
        if sampling.bad_words:
            self._sparse.bad_words[row] = BadWords.build(sampling.bad_words, self.vocab_size)
        if sampling.min_tokens > 0 and sampling.suppressed_until_min:
            self._sparse.suppressed[row] = _int_array(filter(is_known, sampling.suppressed_until_min))
        if sampling.logit_bias:
            known = {token_id: bias for token_id, bias in sampling.logit_bias.items() if is_known(token_id)}
            self._sparse.bias_ids[row] = _int_array(known)
            self._sparse.bias[row] = _float32([*known.values()])
        if sampling.num_prompt_logprobs is not None:
            self._sparse.num_prompt_logprobs[row] = self._num_asked(sampling.num_prompt_logprobs)
        if sampling.grammar is not None:
            self._sparse.grammar[row] = self._grammars.open(sampling.grammar)
        is_edited = self._processors.admit(row, sampling.extra_args) or _is_edited(sampling)
        if not sampling.is_greedy or is_edited or sampling.num_logprobs is not None:
            self._not_plain.add(row)
        self._records[row] = (
            sampling.is_greedy,
            is_edited,
            _float32(sampling.temperature),
            math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf,
            min(sampling.top_k, self.vocab_size) if sampling.top_k > 0 else self.vocab_size,
            sampling.top_p,
            _float32(sampling.repetition_penalty),
            sampling.presence_penalty,
            sampling.frequency_penalty,
            as_int64(sampling.seed),
            min(sampling.min_tokens, INT64_MAX),
            self._num_asked(sampling.num_logprobs),
        )

    def clear(self, row: int) -> None:
        self._records[row] = np.zeros((), dtype=ROW)
        self._sparse.clear(row)
        self._not_plain.discard(row)
        self._processors.clear(row)

    def _num_asked(self, num_logprobs: int | None) -> int:
        return NOT_ASKED if num_logprobs is None else min(num_logprobs, self.vocab_size)

    def num_prompt_logprobs(self, row: int) -> int | None:
        """How many prompt logprobs the row asked for; None: none at all."""
        return self._sparse.num_prompt_logprobs.get(row)

    def expect(
        self,
        rows: npt.NDArray[Any],
        firsts: npt.NDArray[Any],
        lasts: npt.NDArray[Any],
        emits: npt.NDArray[Any],
        history: TokenHistory,
    ) -> None:
        """Start to find out what the grammars of `rows` allow, so that the next `view` need not wait for it.

        int [R] each: that view is of the positions firsts[i], ..., lasts[i] of rows[i], if emits[i]. The tokens in
        `history` before the first one are settled, those between first and last are drafts.
        """
        if not self._sparse.grammar:
            return
        for row, first, last, is_asked in zip(rows.tolist(), firsts.tolist(), lasts.tolist(), emits.tolist()):
            if is_asked and row in self._sparse.grammar:
                self._expect(row, first, last, history)

    def _expect(self, row: int, first: int, last: int, history: TokenHistory) -> None:
        prompt_len = int(history.prompt_len[row])
        output = history.token_ids[row, prompt_len:last]
        self._sparse.grammar[row].expect(output, first - prompt_len, last - prompt_len)

    def _next_tokens(self, work: Work) -> dict[int, NextTokens]:
        """Index in the work -> what its grammar allows. Waits until it is known."""
        having = work.having(self._sparse.grammar)
        positions: dict[int, list[int]] = {}
        for n, row in having:
            positions.setdefault(row, []).append(int(work.positions[n]))
        for row, of_row in positions.items():
            self._expect(row, min(of_row), max(of_row), work.history)
        return {n: self._sparse.grammar[row].at(work.num_outputs(n)) for n, row in having}

    def view(self, rows: npt.NDArray[Any], positions: npt.NDArray[Any], history: TokenHistory) -> SamplingView:
        """Gather what one step needs.

        rows: int [L], the batch row of each logits row, in any order and as often as it has logits rows; positions:
        int64 [L], the index that the chosen token will have, prompt included. The tokens before it are
        `history.token_ids[rows[i], :positions[i]]`.
        """
        if not self._not_plain:
            return SamplingView.of_plain(len(rows), self.vocab_size)
        columns = self._records[rows]
        is_drawn = ~columns["is_greedy"]
        drawn = is_drawn.nonzero()[0]
        edited = (~is_drawn & columns["is_edited"]).nonzero()[0]
        worked = np.concatenate([drawn, edited])
        asked = (columns["num_logprobs"] != NOT_ASKED).nonzero()[0]
        work = Work(rows[worked], positions[worked].astype(np.int64), columns[worked], history, self.vocab_size)
        work.next_tokens.update(self._next_tokens(work))
        return SamplingView(
            num_entries=len(rows),
            vocab_size=self.vocab_size,
            plain=torch.from_numpy((~is_drawn & ~columns["is_edited"]).nonzero()[0]),
            worked=torch.from_numpy(worked),
            num_drawn=len(drawn),
            keys=stream_keys(_tensor(columns["seed"][drawn]), _tensor(work.positions[: len(drawn)]))
            if len(drawn)
            else torch.zeros(0, dtype=torch.int64),
            drawn=columns[drawn],
            edits=self._edits(work) if columns["is_edited"].any() else (),
            num_logprobs=dict(zip(asked.tolist(), columns["num_logprobs"][asked].tolist())),
            refused={int(worked[n]): tokens.error for n, tokens in work.next_tokens.items() if tokens.error},
        )

    def _edits(self, work: Work) -> tuple[LogitsStep, ...]:
        first = (self._allow_only, _follow_grammar, self._forbid_bad_words, self._forbid_early_stop, self._add_bias)
        steps: list[LogitsStep | None] = [build(work) for build in first]
        if self._processors.states:
            steps += self._processors.steps(work.rows.tolist(), work.prompt, work.output)
        steps += [build(work) for build in (_penalise_repetition, _penalise_output)]
        return tuple(step for step in steps if step is not None)

    def _allow_only(self, work: Work) -> LogitsStep | None:
        having = work.having(self._sparse.allowed)
        entries = [(n, self._sparse.allowed[row]) for n, row in having]
        return AllowOnly(torch.tensor([n for n, _ in having]), *_pairs(entries)) if having else None

    def _forbid_bad_words(self, work: Work) -> LogitsStep | None:
        having = work.having(self._sparse.bad_words)
        return _forbid([(n, self._sparse.bad_words[row].forbidden_after(work.output(n))) for n, row in having])

    def _forbid_early_stop(self, work: Work) -> LogitsStep | None:
        having = work.having(self._sparse.suppressed)
        early = [
            (n, row)
            for n, row in having
            if work.num_outputs(n) < work.columns["min_tokens"][n]
            and not (n in work.next_tokens and work.next_tokens[n].is_complete)  # EOS is all there can be
        ]
        return _forbid([(n, self._sparse.suppressed[row]) for n, row in early])

    def _add_bias(self, work: Work) -> LogitsStep | None:
        having = work.having(self._sparse.bias_ids)
        if not having:
            return None
        rows, ids = _pairs([(n, self._sparse.bias_ids[row]) for n, row in having])
        return AddBias(rows, ids, _tensor(np.concatenate([self._sparse.bias[row] for _, row in having])))


def _is_edited(sampling: RowSampling) -> bool:
    return bool(
        sampling.allowed_token_ids is not None
        or sampling.bad_words
        or (sampling.min_tokens > 0 and sampling.suppressed_until_min)
        or sampling.logit_bias
        or sampling.grammar is not None
        or sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


def _int_array(ids: Iterable[int]) -> IntArray:
    return np.fromiter(ids, dtype=np.int64)


def _float32(values: float | list[float]) -> npt.NDArray[np.float32]:
    """A finite number that float32 cannot hold becomes the largest that it can."""
    return np.clip(np.array(values, dtype=np.float64), -FLOAT32_MAX, FLOAT32_MAX).astype(np.float32)


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.copy())  # a field of records has strides that torch does not take


def _pairs(entries: Sequence[tuple[int, IntArray]]) -> tuple[Tensor, Tensor]:
    """Flatten (index, ids) to two int64 tensors [N]."""
    rows = np.repeat(_int_array(n for n, _ in entries), [len(ids) for _, ids in entries])
    return torch.from_numpy(rows), torch.from_numpy(np.concatenate([ids for _, ids in entries]))


def _forbid(entries: Sequence[tuple[int, IntArray]]) -> Forbid | None:
    return Forbid(*_pairs(entries)) if entries else None


def _follow_grammar(work: Work) -> LogitsStep | None:
    if not work.next_tokens:
        return None
    masks = np.stack([tokens.mask for tokens in work.next_tokens.values()])
    return FollowGrammar(torch.tensor(list(work.next_tokens)), torch.from_numpy(masks))


def _penalise_repetition(work: Work) -> LogitsStep | None:
    penalised = (work.columns["repetition"] != 1.0).nonzero()[0]
    if len(penalised) == 0:
        return None
    rows, ids = work.tokens(penalised, output_only=False)
    return PenaliseRepetition(_tensor(rows), _tensor(ids), _tensor(work.columns["repetition"][rows]))


def _penalise_output(work: Work) -> LogitsStep | None:
    penalised = ((work.columns["presence"] != 0) | (work.columns["frequency"] != 0)).nonzero()[0]
    if len(penalised) == 0:
        return None
    rows, ids = work.tokens(penalised, output_only=True)
    entries, counts = np.unique(rows * work.vocab_size + ids, return_counts=True)
    rows, ids = np.divmod(entries, work.vocab_size)
    by_count = work.columns["frequency"][rows] * counts.astype(np.float32)
    return PenaliseOutput(_tensor(rows), _tensor(ids), _tensor(by_count), _tensor(work.columns["presence"][rows]))


def _filters(drawn: npt.NDArray[Any], vocab_size: int) -> tuple[LogitsStep, ...]:
    """drawn: ROW [S], the entries to be drawn."""
    with_min_p = (drawn["log_min_p"] > -np.inf).nonzero()[0]
    with_top_k = (drawn["top_k"] < vocab_size).nonzero()[0]
    with_top_p = (drawn["top_p"] < 1).nonzero()[0]
    steps: list[LogitsStep] = []
    if (drawn["temperature"] != 1).any():
        steps.append(Temperature(_tensor(drawn["temperature"])))
    if len(with_min_p):
        steps.append(MinP(_tensor(with_min_p), _tensor(drawn["log_min_p"][with_min_p])))
    if len(with_top_k):
        steps.append(TopK(_tensor(with_top_k), _tensor(drawn["top_k"][with_top_k])))
    if len(with_top_p):
        steps.append(TopP(_tensor(with_top_p), _tensor(drawn["top_p"][with_top_p])))
    return tuple(steps)
