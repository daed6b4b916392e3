"""Decides what every step computes. The only writer of Request.

    plan   = scheduler.schedule()
    deltas = scheduler.commit(plan, result of the plan)

Plans run strictly in the order in which they were made, and step n + 1 may be planned before step n is committed.
So `num_computed` moves when a step is planned, a token that is still being sampled counts as `num_inflight`, and blocks
and rows that are given back can be handed out in the very next plan: whoever used them has run by then.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque

import msgspec

from motet.core.config import CacheConfig, SchedulerConfig
from motet.core.errors import InputError
from motet.core.plan import NewRow, RowPlan, StepPlan
from motet.core.request import Request, RequestStatus
from motet.core.result import Delta, FinishReason, RowResult, StepResult
from motet.core.state import Capacity, StateGroup
from motet.sched.adapters import AdapterSlots
from motet.sched.block_hash import MAX_TOKEN_ID
from motet.sched.cache import NewBlocks, PrefixHit, StateCache
from motet.sched.draft import Draft, LaunchedStep
from motet.sched.queue import POLICIES, Running

MAX_STEPS_IN_FLIGHT = 2
NO_NEWS = RowResult()
Stop = tuple[FinishReason, int | None]  # finish reason, stop reason


class SchedulerStats(msgspec.Struct, frozen=True):
    """Prefix counts are in tokens, one query per request with its first admission; `num_free_blocks` is per group."""

    num_running: int
    num_waiting: int
    num_free_blocks: tuple[int, ...]
    num_preemptions: int
    num_prefix_hit_tokens: int
    num_prefix_query_tokens: int
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class Scheduler:
    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        groups: tuple[StateGroup, ...],
        capacity: Capacity,
        max_model_len: int,
        max_drafts: int = 0,
        lookahead: int = 0,
        max_adapters: int = 0,
    ) -> None:
        """max_drafts: of a request and step; lookahead: positions behind a step's tokens that the drafter writes to.

        Raises CapacityError when not even one request of `max_model_len` tokens fits.
        """
        self._max_tokens_per_step = config.max_num_batched_tokens
        self._max_model_len = max_model_len
        self._num_rows = config.max_num_seqs
        self._caches_prefixes = cache.enable_prefix_caching
        self._lookahead = lookahead
        self._cache = StateCache(
            groups,
            capacity,
            cache.enable_prefix_caching,
            config.max_num_batched_tokens,
            max_drafts + lookahead,
        )
        self._cache.require_room(max_model_len)
        self._adapters = AdapterSlots(max_adapters)

        self._requests: dict[str, Request] = {}  # all that are not finished
        self._waiting = POLICIES[config.policy]()
        self._running: Running = {}
        self._launched: deque[LaunchedStep] = deque()
        self._free_rows = list(range(config.max_num_seqs))  # a heap: low rows first
        self._rows_to_free: list[int] = []  # not yet told to the runner
        self._num_added = 0
        self._num_steps = 0
        self._num_preemptions = 0
        self._num_prefix_hit_tokens = 0
        self._num_prefix_query_tokens = 0
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0

    # What a client does -----------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a new request. Raises InputError for one that can never be served."""
        self._refuse_impossible(request)
        request.sequence = self._num_added
        self._num_added += 1
        self._requests[request.request_id] = request
        self._waiting.push(request)

    def abort(self, request_id: str) -> Delta | None:
        """End a request at any moment, also while a step computes it. None when it is unknown or finished."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._finish(request, FinishReason.ABORT, None)
        return self._delta(request)

    def finish(self, request_id: str, stop_reason: str) -> None:
        """Output processing has found the stop string `stop_reason`; nothing happens when the request has ended."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, FinishReason.STOP, stop_reason)

    def _refuse_impossible(self, request: Request) -> None:
        name = f"request {request.request_id!r}"
        if request.request_id in self._requests:
            raise InputError(f"{name} is still being served; give every request an id of its own")
        if request.prompt_len == 0:
            raise InputError(f"{name} has an empty prompt; send at least one token")
        if request.prompt_len + 1 > self._max_model_len:
            raise InputError(
                f"{name} has a prompt of {request.prompt_len} tokens, but max_model_len={self._max_model_len} leaves "
                f"room for at most {self._max_model_len - 1}; shorten the prompt or raise max_model_len"
            )
        if request.max_tokens < 1:
            raise InputError(f"{name}: max_tokens must be at least 1, got {request.max_tokens}")
        for token_id in (min(request.prompt_token_ids), max(request.prompt_token_ids)):
            if not 0 <= token_id <= MAX_TOKEN_ID:
                raise InputError(f"{name}: prompt token id {token_id} is outside every vocabulary; remove it")

    # Planning a step --------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Plan the next step; the plan may be empty. A plan with rows must be launched and committed, in order."""
        assert len(self._launched) < MAX_STEPS_IN_FLIGHT, f"step {self._launched[0].plan.step} must be committed first"
        draft = Draft(self._max_tokens_per_step)
        self._advance_running(draft)
        if not draft.has_preempted:
            self._admit_waiting(draft)
        return self._seal(draft)

    def _advance_running(self, draft: Draft) -> None:
        for request in list(self._running):
            num_tokens = min(self._num_wanted(request), draft.budget)
            if num_tokens == 0 or request not in self._running:  # it may have given way to one before it
                continue
            drafts = self._drafts_of(request, num_tokens, draft.budget)
            new_blocks = self._cache.extend(request, self._end(request, num_tokens + len(drafts))) if drafts else None
            if new_blocks is None:  # nobody gives way to a guess
                drafts = ()
                new_blocks = self._make_room(request, self._end(request, num_tokens), draft)
            if new_blocks is not None:
                self._plan_row(request, num_tokens, new_blocks, draft, drafts)
        # Only now is it certain that these rows are computed, and admissions may use what they write.
        for request in draft.rows:
            self._cache.register(request)

    def _num_wanted(self, request: Request) -> int:
        """Tokens that remain to be computed; none while the last result of the request is still in flight."""
        num_outputs = len(request.output_token_ids) + request.num_inflight
        if num_outputs >= request.max_tokens or request.num_tokens_expected >= self._max_model_len:
            return 0
        return request.num_tokens_expected - request.num_computed

    def _drafts_of(self, request: Request, num_tokens: int, budget: int) -> tuple[int, ...]:
        """As many as the step, the request's own limit and the context have room for, besides one token more."""
        end = request.num_computed + num_tokens
        if end != request.num_tokens_expected:  # a chunk of a prompt
            return ()
        num_outputs = len(request.output_token_ids) + request.num_inflight
        room = min(budget - num_tokens, request.max_tokens - num_outputs - 1, self._max_model_len - end - 1)
        return request.drafts[: max(0, room)]

    def _end(self, request: Request, num_tokens: int) -> int:
        """Up to where a request that computes `num_tokens` needs blocks."""
        return min(request.num_computed + num_tokens + self._lookahead, self._max_model_len)

    def _make_room(self, request: Request, end: int, draft: Draft) -> NewBlocks | None:
        """Blocks up to token `end`, taken from others if need be. None when `request` itself had to give way."""
        while (new_blocks := self._cache.extend(request, end)) is None:
            victim = self._waiting.victim(self._running)
            self._preempt(victim, draft)
            if victim is request:
                return None
        return new_blocks

    def _preempt(self, victim: Request, draft: Draft) -> None:
        """Back into the queue, to be recomputed later. What it has in this step is undone; launched steps count."""
        draft.has_preempted = True
        dropped = draft.drop(victim)
        if dropped is not None and dropped.emits:
            victim.num_inflight -= 1
        self._vacate(victim)
        victim.num_computed = 0
        victim.drafts = ()
        victim.num_preemptions += 1
        victim.status = RequestStatus.PREEMPTED
        self._waiting.put_back(victim)
        self._num_preemptions += 1

    def _admit_waiting(self, draft: Draft) -> None:
        """In order, and nobody overtakes a request that has to wait for blocks or for a place for its adapter."""
        while draft.budget and self._can_admit:
            request = self._waiting.peek()
            hit = self._cache.find_hit(request)
            num_tokens = min(request.num_tokens - hit.num_tokens, draft.budget)
            end = min(hit.num_tokens + num_tokens + self._lookahead, self._max_model_len)
            table = self._cache.admit(request, hit, end)
            if table is None:
                return
            self._enter(request, hit, draft)
            self._plan_row(request, num_tokens, table, draft)
            self._cache.register(request)

    @property
    def _can_admit(self) -> bool:
        """A row is free for the first in the queue, and a place for its adapter, and its last result before a
        preemption has arrived."""
        if not self._free_rows or not len(self._waiting):
            return False
        first = self._waiting.peek()
        return first.num_inflight == 0 and self._adapters.has_room(first.adapter)

    def _enter(self, request: Request, hit: PrefixHit, draft: Draft) -> None:
        """The request leaves the queue for a row of the batch."""
        if request.num_cached is None:
            request.num_cached = hit.num_tokens
            self._num_prefix_hit_tokens += hit.num_tokens
            if self._caches_prefixes and not request.skip_prefix_cache_read:
                self._num_prefix_query_tokens += request.prompt_len
        self._waiting.remove(request)
        self._running[request] = None
        request.status = RequestStatus.RUNNING
        request.num_computed = hit.num_tokens
        request.row = heapq.heappop(self._free_rows)
        draft.admits.append(
            NewRow(
                request.row,
                request.request_id,
                request.token_ids(),
                request.prompt_len,
                request.sampling,
                self._adapters.take(request.adapter),
            )
        )

    def _plan_row(
        self,
        request: Request,
        num_tokens: int,
        new_blocks: NewBlocks,
        draft: Draft,
        drafts: tuple[int, ...] = (),
    ) -> None:
        assert request.row is not None
        start = request.num_computed
        emits = start + num_tokens == request.num_tokens_expected
        num_tokens += len(drafts)
        request.num_computed += num_tokens
        request.num_inflight += emits
        request.drafts = ()
        draft.add(request, RowPlan(request.row, request.request_id, start, num_tokens, emits, new_blocks, drafts))

    def _seal(self, draft: Draft) -> StepPlan:
        plan = StepPlan(
            step=self._num_steps,
            rows=tuple(draft.rows.values()),
            admits=tuple(draft.admits),
            frees=tuple(self._rows_to_free),
            loads=self._adapters.take_loads(),
        )
        self._num_steps += 1
        self._rows_to_free.clear()
        if plan.rows:
            self._launched.append(LaunchedStep(plan, tuple(draft.rows)))
        return plan

    # Taking in its result ---------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, result: StepResult) -> list[Delta]:
        """Take in the result of the oldest launched plan. Plans without rows need no commit and do nothing here."""
        if not plan.rows:
            return []
        launched = self._launched.popleft()
        assert launched.plan.step == plan.step == result.step, (
            f"plan {plan.step} with result {result.step} is committed, but step {launched.plan.step} is next"
        )
        deltas: list[Delta] = []
        for request, row, outcome in zip(launched.requests, plan.rows, result.rows, strict=True):
            if not request.is_finished:  # otherwise it ended while the step ran, and nobody waits for the outcome
                deltas += self._commit_row(request, row, outcome)
        return deltas

    def _commit_row(self, request: Request, row: RowPlan, outcome: RowResult) -> list[Delta]:
        request.num_inflight -= row.emits
        if outcome.error is not None:
            self._cache.distrust(request)
            self._finish(request, FinishReason.ERROR, None)
            return [self._delta(request, RowResult(error=outcome.error))]
        most = row.emits + len(row.drafts)
        assert row.emits <= len(outcome.token_ids) <= most, f"row {row.row} brought {len(outcome.token_ids)} tokens"
        self._count_drafts(request, row, outcome)
        num_taken = 0
        while num_taken < len(outcome.token_ids) and not request.is_finished:  # drafts may go on behind the end
            self._append(request, outcome.token_ids[num_taken])
            num_taken += 1

        # A prompt that is recomputed after a preemption brings again what was delivered before.
        num_known = max(0, request.num_prompt_logprobs - row.start)
        news = msgspec.structs.replace(
            outcome,
            token_ids=outcome.token_ids[:num_taken],
            logprobs=outcome.logprobs[:num_taken],
            prompt_logprobs=outcome.prompt_logprobs[num_known:],
        )
        request.num_prompt_logprobs += len(news.prompt_logprobs)
        if not news.token_ids and not news.prompt_logprobs:
            return []
        return [self._delta(request, news, prompt_logprobs_start=row.start + num_known + 1)]

    def _count_drafts(self, request: Request, row: RowPlan, outcome: RowResult) -> None:
        """Positions of rejected drafts are computed again; their blocks stay."""
        request.drafts = outcome.drafts
        if row.drafts:
            num_accepted = len(outcome.token_ids) - 1
            request.num_computed -= len(row.drafts) - num_accepted
            request.num_drafted += len(row.drafts)
            request.num_accepted += num_accepted
            self._num_draft_tokens += len(row.drafts)
            self._num_accepted_tokens += num_accepted

    def _append(self, request: Request, token_id: int) -> None:
        request.output_token_ids.append(token_id)
        self._cache.register(request)
        stop = self._stop_at(request, token_id)
        if stop is not None:
            self._finish(request, *stop)

    def _stop_at(self, request: Request, token_id: int) -> Stop | None:
        """Whether the newest token ends the request. Before `min_tokens` the sampler draws no stop token."""
        if token_id in request.eos_token_ids:
            return FinishReason.STOP, None
        if token_id in request.stop_token_ids:
            return FinishReason.STOP, token_id
        if len(request.output_token_ids) >= request.max_tokens or request.num_tokens >= self._max_model_len:
            return FinishReason.LENGTH, None
        return None

    def _finish(self, request: Request, reason: FinishReason, stop_reason: int | str | None) -> None:
        if request.status is RequestStatus.RUNNING:
            self._vacate(request)
        else:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason
        request.num_inflight = 0
        del self._requests[request.request_id]

    def _vacate(self, request: Request) -> None:
        """Blocks, row and adapter go back; all can be in the next plan."""
        assert request.row is not None
        del self._running[request]
        self._cache.release(request)
        self._adapters.give_back(request.adapter)
        heapq.heappush(self._free_rows, request.row)
        self._rows_to_free.append(request.row)
        request.row = None

    def _delta(self, request: Request, news: RowResult = NO_NEWS, prompt_logprobs_start: int = 0) -> Delta:
        return Delta(
            request_id=request.request_id,
            token_ids=news.token_ids,
            logprobs=news.logprobs,
            prompt_logprobs=news.prompt_logprobs,
            prompt_logprobs_start=prompt_logprobs_start,
            num_cached_tokens=request.num_cached or 0,
            num_preemptions=request.num_preemptions,
            num_drafted=request.num_drafted,
            num_accepted=request.num_accepted,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            error=news.error,
        )

    # What others may ask ----------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    @property
    def has_work(self) -> bool:
        """Whether a plan made now could hold anything. False also while all that is left is to commit."""
        return bool(self._rows_to_free) or self._can_admit or any(self._num_wanted(r) for r in self._running)

    @property
    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_free_blocks=self._cache.num_free_blocks,
            num_preemptions=self._num_preemptions,
            num_prefix_hit_tokens=self._num_prefix_hit_tokens,
            num_prefix_query_tokens=self._num_prefix_query_tokens,
            num_draft_tokens=self._num_draft_tokens,
            num_accepted_tokens=self._num_accepted_tokens,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and nothing changed, while a request holds blocks."""
        return self._cache.reset()

    def forget_adapters(self) -> None:
        """The runner's copies are lost. Nothing may run."""
        self._adapters.forget()

    def check(self) -> None:
        """All invariants of the scheduler, the pools and the requests. Raises AssertionError."""
        self._check_places()
        self._check_counts()
        self._cache.check(self._running)
        self._adapters.check(Counter(request.adapter.key for request in self._running if request.adapter))

    def _check_places(self) -> None:
        waiting = list(self._waiting)
        assert {*waiting, *self._running} == set(self._requests.values()), "a request is lost, or listed when finished"
        assert len(waiting) + len(self._running) == len(self._requests), "a request is in two places"
        rows = [row for request in self._running if (row := request.row) is not None]
        assert sorted([*self._free_rows, *rows]) == list(range(self._num_rows)), (
            f"rows are lost or shared: in use {rows}, free {self._free_rows}"
        )
        for request in waiting:
            name = f"waiting request {request.request_id!r}"
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), f"{name} is {request.status}"
            assert request.row is None, f"{name} holds row {request.row}"
            assert not request.blocks, f"{name} holds blocks {request.blocks}"
            assert request.num_computed == 0, f"{name} has {request.num_computed} computed tokens"
        for request in self._running:
            name = f"running request {request.request_id!r}"
            assert request.status is RequestStatus.RUNNING, f"{name} is {request.status}"
            assert 0 < request.num_computed <= request.num_tokens_expected, f"{name}: computed {request.num_computed}"

    def _check_counts(self) -> None:
        emitting = Counter(
            request
            for step in self._launched
            for request, row in zip(step.requests, step.plan.rows, strict=True)
            if row.emits
        )
        for request in self._requests.values():
            name = f"request {request.request_id!r}"
            assert request.num_inflight == emitting[request], (
                f"{name} awaits {request.num_inflight} tokens, {emitting[request]} are in flight"
            )
            assert len(request.output_token_ids) + request.num_inflight <= request.max_tokens, f"{name} is too long"
            assert request.num_tokens_expected <= self._max_model_len, f"{name} exceeds max_model_len"
