"""A runner without a model, and an engine loop around it: the strict oracle for the scheduler's tests.

The fake model draws each token as a fixed function of the whole history. The fake KV cache stores in every slot the
name of the exact history (salt and all tokens up to that position) that was written there, and every key that a query
must see is compared with the history it should belong to: a stale, missing, foreign or overwritten key fails at once.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass, field

from motet.core.config import CacheConfig, SchedulerConfig
from motet.core.params import RowSampling
from motet.core.plan import NewRow, RowPlan, StepPlan
from motet.core.request import Request
from motet.core.result import Delta, FinishReason, RowResult, StepResult, TokenLogprobs
from motet.core.state import Capacity, StateGroup
from motet.sched.scheduler import Scheduler

VOCAB_SIZE = 5
GARBAGE = -1  # what a broken row writes


def next_token(token_ids: list[int]) -> int:
    return zlib.crc32(bytes(token_ids)) % VOCAB_SIZE


def logprobs_of(token_id: int, position: int) -> TokenLogprobs:
    """A mark by which a test recognises the entry."""
    return TokenLogprobs([token_id], [-float(position)], 1)


def full_group() -> StateGroup:
    return StateGroup(None, ("a",), 8)


def window_group(window: int) -> StateGroup:
    return StateGroup(window, (f"w{window}",), 8)


def least_blocks(group: StateGroup, block_size: int, max_model_len: int, max_tokens: int) -> int:
    """Fewest blocks, null block included, with which one request of `max_model_len` can run."""
    all_blocks = -(-max_model_len // block_size)
    if group.window is None:
        return 1 + all_blocks
    return 1 + min(all_blocks, 1 + -(-(group.window - 1 + max_tokens) // block_size))


@dataclass
class Row:
    request: Request  # only what a real runner cannot see: salt, and where this request shall fail
    token_ids: list[int]
    prompt_len: int
    num_prompt_logprobs: int | None
    num_computed: int | None = None  # set by the first RowPlan
    tables: list[list[int]] = field(default_factory=list)
    is_broken: bool = False


class FakeRunner:
    def __init__(self, groups: tuple[StateGroup, ...], capacity: Capacity, max_rows: int, max_tokens: int) -> None:
        self.groups, self.capacity = groups, capacity
        self.max_rows, self.max_tokens = max_rows, max_tokens
        self.rows: dict[int, Row] = {}
        self.slots: list[dict[tuple[int, int], int]] = [{} for _ in groups]  # [group][block, offset] -> history name
        self.names: dict[tuple[int, object], int] = {}  # (name of the history before, token) -> name: a trie
        self.fails_at: dict[Request, int] = {}  # request -> number of outputs before its error
        self.next_step = 0

    def launch(self, plan: StepPlan, requests: dict[str, Request]) -> StepResult:
        assert plan.step == self.next_step
        self.next_step += 1
        for row_index in plan.frees:
            del self.rows[row_index]
        for new in plan.admits:
            self._admit(new, requests[new.request_id])
        assert plan.num_tokens <= self.max_tokens
        assert len({row.row for row in plan.rows}) == len(plan.rows), "a row is computed twice in one step"
        assert {new.row for new in plan.admits} <= {row.row for row in plan.rows}, "a row is admitted to do nothing"
        written: set[tuple[int, int, int]] = set()
        for row_plan in plan.rows:
            self._write(row_plan, written)
        for row_plan in plan.rows:
            self._read(row_plan)
        return StepResult(plan.step, tuple(self._sample(row_plan) for row_plan in plan.rows))

    def _admit(self, new: NewRow, request: Request) -> None:
        assert new.row not in self.rows, f"row {new.row} is taken"
        assert 0 <= new.row < self.max_rows
        assert len(new.token_ids) >= new.prompt_len == request.prompt_len
        tables: list[list[int]] = [[] for _ in self.groups]
        self.rows[new.row] = Row(
            request, list(new.token_ids), new.prompt_len, new.sampling.num_prompt_logprobs, tables=tables
        )

    def _history_names(self, row: Row) -> list[int]:
        names, name = [], self.names.setdefault((-1, row.request.cache_salt), len(self.names))
        for token_id in row.token_ids:
            name = self.names.setdefault((name, token_id), len(self.names))
            names.append(name)
        return names

    def _write(self, plan: RowPlan, written: set[tuple[int, int, int]]) -> None:
        row = self.rows[plan.row]
        end = plan.start + plan.num_tokens
        if row.num_computed is None:
            row.num_computed = plan.start
        assert plan.request_id == row.request.request_id
        assert plan.start == row.num_computed, f"tokens are skipped or repeated: {row.num_computed} -> {plan.start}"
        assert 0 < plan.num_tokens <= len(row.token_ids) - plan.start
        assert plan.emits == (end == len(row.token_ids))
        row.num_computed = end
        names = self._history_names(row)
        for group, (table, new_blocks) in enumerate(zip(row.tables, plan.new_blocks, strict=True)):
            table.extend(new_blocks)
            assert len(table) == -(-end // self.capacity.block_size), "the block table does not fit the chunk"
            for position in range(plan.start, end):
                block, offset = self._slot(table, position)
                assert 0 < block < self.capacity.num_blocks[group], f"token {position} is written to block {block}"
                assert (group, block, offset) not in written, f"two rows write block {block} in one step"
                written.add((group, block, offset))
                self.slots[group][block, offset] = GARBAGE if row.is_broken else names[position]

    def _read(self, plan: RowPlan) -> None:
        row = self.rows[plan.row]
        if row.is_broken:
            return
        names = self._history_names(row)
        for group, spec in enumerate(self.groups):
            first = 0 if spec.window is None else max(0, plan.start - spec.window + 1)
            for position in range(first, plan.start + plan.num_tokens):
                block, offset = self._slot(row.tables[group], position)
                assert block != 0, f"key {position} of row {plan.row} lies in the null block"
                found = self.slots[group].get((block, offset))
                assert found == names[position], f"row {plan.row} reads another history at key {position}"

    def _slot(self, table: list[int], position: int) -> tuple[int, int]:
        return table[position // self.capacity.block_size], position % self.capacity.block_size

    def _sample(self, plan: RowPlan) -> RowResult:
        row = self.rows[plan.row]
        prompt_logprobs = ()
        if row.num_prompt_logprobs is not None:
            last = min(plan.start + plan.num_tokens, row.prompt_len - 1)
            prompt_logprobs = tuple(logprobs_of(row.token_ids[i], i) for i in range(plan.start + 1, last + 1))
        if not plan.emits:
            return RowResult(prompt_logprobs=prompt_logprobs)
        if self.fails_at.get(row.request) == len(row.token_ids) - row.prompt_len or row.is_broken:
            row.is_broken = True
            row.token_ids.append(0)
            return RowResult(error="non-finite logits")
        token_id = next_token(row.token_ids)
        row.token_ids.append(token_id)
        return RowResult((token_id,), (logprobs_of(token_id, len(row.token_ids) - 1),), prompt_logprobs)


@dataclass
class Received:
    """What a client got."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    last: Delta | None = None
    stopped_by_string: bool = False

    def take(self, delta: Delta) -> None:
        assert self.last is None, f"news after the last delta: {delta}"
        assert not self.stopped_by_string
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        for index, entry in enumerate(delta.prompt_logprobs, delta.prompt_logprobs_start):
            assert index not in self.prompt_logprobs, f"the logprob of prompt token {index} came twice"
            self.prompt_logprobs[index] = entry
        if delta.finish_reason is not None:
            self.last = delta


def expected_outcome(
    request: Request, max_model_len: int, fails_at: int | None = None
) -> tuple[list[int], FinishReason, int | None]:
    """The naive engine: one request, alone, no cache. Tokens, finish reason, stop reason."""
    history, output = list(request.prompt_token_ids), []
    while True:
        if len(output) == fails_at:
            return output, FinishReason.ERROR, None
        token_id = next_token(history)
        history.append(token_id)
        output.append(token_id)
        if token_id in request.eos_token_ids:
            return output, FinishReason.STOP, None
        if token_id in request.stop_token_ids:
            return output, FinishReason.STOP, token_id
        if len(output) == request.max_tokens or len(history) == max_model_len:
            return output, FinishReason.LENGTH, None


class Engine:
    """Scheduler and fake runner in the engine's order of calls; checks everything after each call."""

    def __init__(
        self,
        groups: tuple[StateGroup, ...] | None = None,
        *,
        block_size: int = 4,
        num_blocks: tuple[int, ...] | int = 100,
        max_model_len: int = 40,
        max_num_seqs: int = 4,
        max_tokens: int = 64,
        policy: str = "fcfs",
        caching: bool = True,
        overlap: bool = False,
    ) -> None:
        self.groups = groups or (full_group(),)
        sizes = (num_blocks,) * len(self.groups) if isinstance(num_blocks, int) else num_blocks
        self.capacity = Capacity(block_size, sizes)
        self.max_model_len, self.max_num_seqs, self.max_tokens = max_model_len, max_num_seqs, max_tokens
        self.overlap = overlap
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=max_num_seqs, max_num_batched_tokens=max_tokens, policy=policy, async_scheduling=overlap
            ),
            CacheConfig(
                block_size=block_size,
                enable_prefix_caching=caching,
                memory_utilization=None,
                kv_cache_memory_bytes=None,
                num_blocks_override=None,
                kv_cache_dtype="auto",
            ),
            self.groups,
            self.capacity,
            max_model_len,
        )
        self.runner = FakeRunner(self.groups, self.capacity, max_num_seqs, max_tokens)
        self.requests: dict[str, Request] = {}
        self.received: dict[str, Received] = defaultdict(Received)
        self.pending: tuple[StepPlan, StepResult] | None = None

    def make(self, prompt: list[int], max_tokens: int = 8, *, request_id: str | None = None, **fields) -> Request:
        fields.setdefault("sampling", RowSampling())
        name = request_id or f"r{len(self.requests)}"
        return Request(request_id=name, prompt_token_ids=list(prompt), max_tokens=max_tokens, **fields)

    def add(self, prompt: list[int], max_tokens: int = 8, *, fails_at: int | None = None, **fields) -> Request:
        request = self.make(prompt, max_tokens, **fields)
        self.scheduler.add(request)
        self.requests[request.request_id] = request
        if fails_at is not None:
            self.runner.fails_at[request] = fails_at
        self.scheduler.check()
        return request

    def abort(self, request: Request) -> None:
        delta = self.scheduler.abort(request.request_id)
        self.scheduler.check()
        if delta is not None:
            self.received[request.request_id].take(delta)

    def stop(self, request: Request, stop_string: str = "stop") -> None:
        was_running = not request.is_finished
        self.scheduler.finish(request.request_id, stop_string)
        self.scheduler.check()
        self.received[request.request_id].stopped_by_string |= was_running

    def step(self) -> StepPlan:
        """One turn of the engine loop. With overlap the step before is committed after this one is launched."""
        plan = self.plan()
        if not self.overlap:
            self.commit()
        return plan

    def plan(self) -> StepPlan:
        had_work = self.scheduler.has_work
        plan = self.scheduler.schedule()
        self.scheduler.check()
        assert had_work or plan.is_empty, "has_work hides work"
        result = self.runner.launch(plan, self.requests)
        before, self.pending = self.pending, (plan, result)
        if before is not None:
            self._commit(*before)
        return plan

    def commit(self) -> None:
        if self.pending is not None:
            self._commit(*self.pending)
            self.pending = None

    def _commit(self, plan: StepPlan, result: StepResult) -> None:
        deltas = self.scheduler.commit(plan, result)
        self.scheduler.check()
        for delta in deltas:
            self.received[delta.request_id].take(delta)

    def run(self, max_steps: int = 5000) -> None:
        """Until nothing is left to do; every request must get there."""
        for _ in range(max_steps):
            if not self.scheduler.has_work and self.pending is None:
                break
            if self.scheduler.has_work:
                self.step()
            else:
                self.commit()
        assert not self.scheduler.has_unfinished, "requests are stuck"
        self.check_idle()

    def check_idle(self) -> None:
        stats = self.scheduler.stats
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.num_free_blocks == tuple(size - 1 for size in self.capacity.num_blocks)
        assert not self.runner.rows, "a row was never freed"

    def check_outcome(self, request: Request) -> None:
        """Everything that the client of a finished request got is what the request gives alone."""
        received = self.received[request.request_id]
        tokens, reason, stop_reason = expected_outcome(request, self.max_model_len, self.runner.fails_at.get(request))
        assert received.token_ids == request.output_token_ids
        start = request.prompt_len
        assert received.logprobs == [logprobs_of(token, start + i) for i, token in enumerate(received.token_ids)]
        if request.finish_reason is FinishReason.ABORT or received.stopped_by_string:
            assert received.token_ids == tokens[: len(received.token_ids)]
        else:
            assert received.token_ids == tokens
            assert received.last is not None
            assert (request.finish_reason, request.stop_reason) == (reason, stop_reason)
        if received.last is not None:
            assert received.last.finish_reason is request.finish_reason
            assert received.last.stop_reason == request.stop_reason
            assert (received.last.error is not None) == (request.finish_reason is FinishReason.ERROR)
            assert received.last.num_cached_tokens == (request.num_cached or 0)
        entries = dict(enumerate((logprobs_of(t, i) for i, t in enumerate(request.prompt_token_ids[1:], 1)), 1))
        if request.sampling.num_prompt_logprobs is None:
            assert not received.prompt_logprobs
        elif received.token_ids:
            assert received.prompt_logprobs == entries
        else:
            assert received.prompt_logprobs.items() <= entries.items()


def check_all(engine: Engine) -> None:
    """Run to the end; everyone got what it gets alone, and nothing is left behind."""
    engine.run()
    for request in engine.requests.values():
        engine.check_outcome(request)
