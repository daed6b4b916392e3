"""One test per rule; preemption has its own file, and test_machine.py and test_storm.py are about all rules at once."""

from __future__ import annotations

import msgspec
import pytest

from motet.core.errors import CapacityError, InputError
from motet.core.params import RowSampling
from motet.core.plan import StepPlan
from motet.core.request import RequestStatus
from motet.core.result import FinishReason, RowResult, StepResult
from tests.sched.fake_runner import Engine, check_all, expected_outcome, full_group, next_token, window_group

both_modes = pytest.mark.parametrize("overlap", [False, True])


def sizes(plan: StepPlan) -> dict[str, int]:
    return {row.request_id: row.num_tokens for row in plan.rows}


def outputs_until_stop(prompt: list[int], count: int) -> list[int]:
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]


# Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "fields", "parts"),
    [
        ([1] * 40, {}, ["40 tokens", "max_model_len=40", "at most 39"]),
        ([1] * 400, {}, ["400 tokens", "max_model_len=40"]),
        ([], {}, ["empty prompt"]),
        ([1, 2**63], {}, [str(2**63), "outside every vocabulary"]),
        ([1, -1], {}, ["-1", "outside every vocabulary"]),
        ([1], {"max_tokens": 0}, ["max_tokens", "at least 1"]),
        ([1], {"request_id": "first"}, ["'first'", "id of its own"]),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(prompt, fields, parts):
    engine = Engine()
    engine.add([1, 2, 3], request_id="first")
    with pytest.raises(InputError) as caught:
        engine.add(prompt, **fields)
    for part in parts:
        assert part in str(caught.value)
    check_all(engine)  # the other request does not notice


def test_the_longest_prompt_yields_one_token_with_reason_length():
    engine = Engine(max_model_len=40)
    request = engine.add([1] * 39, max_tokens=8)
    check_all(engine)
    assert len(request.output_token_ids) == 1
    assert request.finish_reason is FinishReason.LENGTH


def test_an_engine_that_cannot_hold_one_request_does_not_start():
    with pytest.raises(CapacityError, match=r"max_model_len=40 tokens needs 10 blocks.* only 9 fit"):
        Engine(max_model_len=40, block_size=4, num_blocks=10)
    Engine(max_model_len=40, block_size=4, num_blocks=11)


def test_odd_stop_ids_do_no_harm():
    engine = Engine()
    engine.add([1, 2], stop_token_ids=frozenset({-1, 2**70}), eos_token_ids=frozenset({10**9}))
    check_all(engine)


def test_an_id_can_be_used_again_even_while_its_old_result_is_in_flight():
    engine = Engine(overlap=True)
    old = engine.add([1, 2, 3], request_id="x")
    engine.step()
    engine.abort(old)
    engine.received.clear()
    new = engine.add([3, 2, 1], request_id="x")
    check_all(engine)
    assert old.output_token_ids == []
    assert new.output_token_ids == expected_outcome(new, 40)[0]


# Planning --------------------------------------------------------------------------------------------------------


def test_one_budget_for_decode_and_prefill_running_first():
    engine = Engine(max_tokens=6)
    first = engine.add([1, 2], 8)
    engine.step()
    second, third = engine.add([3] * 7, 8), engine.add([4] * 3, 8)
    names = [request.request_id for request in (first, second, third)]
    assert sizes(engine.step()) == {names[0]: 1, names[1]: 5}  # cut by the budget
    assert sizes(engine.step()) == {names[0]: 1, names[1]: 2, names[2]: 3}
    assert sizes(engine.step()) == {names[0]: 1, names[1]: 1, names[2]: 1}
    check_all(engine)


def test_only_the_last_chunk_of_a_prompt_emits():
    engine = Engine(max_tokens=3)
    engine.add([1] * 7, 2)
    plans = [engine.step() for _ in range(4)]
    assert [(row.start, row.num_tokens, row.emits) for plan in plans for row in plan.rows] == [
        (0, 3, False),
        (3, 3, False),
        (6, 1, True),
        (7, 1, True),
    ]
    check_all(engine)


def test_rows_limit_admissions_and_are_reused():
    engine = Engine(max_num_seqs=2)
    requests = [engine.add([i, i, i], 1) for i in range(3)]
    plan = engine.step()
    assert [new.row for new in plan.admits] == [0, 1]
    assert engine.scheduler.num_waiting == 1
    plan = engine.step()
    assert plan.frees == (0, 1)
    assert [(new.request_id, new.row) for new in plan.admits] == [(requests[2].request_id, 0)]
    check_all(engine)


def test_nobody_overtakes_a_request_that_waits_for_blocks():
    engine = Engine(num_blocks=11)
    engine.add([1] * 20, 8)
    engine.step()
    engine.add([2] * 30, 8)
    engine.add([3], 8)
    assert engine.step().admits == ()
    assert engine.scheduler.num_waiting == 2
    check_all(engine)


@both_modes
def test_nothing_is_scheduled_beyond_the_last_token(overlap):
    for fields, num_outputs in [({"max_tokens": 3}, 3), ({"max_tokens": 100}, 37)]:
        engine = Engine(overlap=overlap)
        request = engine.add([1, 2, 3], **fields)
        num_planned = 0
        while engine.scheduler.has_work:
            num_planned += engine.step().num_tokens
        assert num_planned == 3 + num_outputs - 1  # the last token is never computed
        check_all(engine)
        assert len(request.output_token_ids) == num_outputs


def test_overlap_plans_the_token_that_is_still_being_sampled():
    engine = Engine(overlap=True)
    request = engine.add([1, 2, 3], 8)
    first, second = engine.plan(), engine.scheduler.schedule()
    assert [(row.start, row.num_tokens, row.emits) for row in first.rows] == [(0, 3, True)]
    assert [(row.start, row.num_tokens, row.emits) for row in second.rows] == [(3, 1, True)]
    assert request.num_inflight == 2
    with pytest.raises(AssertionError, match="step 0 must be committed first"):
        engine.scheduler.schedule()


def test_a_plan_is_plain_data():
    engine = Engine((full_group(), window_group(3)))
    engine.add([1] * 6, sampling=RowSampling(seed=3))
    plan = engine.step()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan) == plan


def test_a_plan_without_rows_needs_no_commit():
    engine = Engine()
    assert not engine.scheduler.has_work
    plan = engine.scheduler.schedule()
    assert plan.is_empty
    assert engine.scheduler.schedule().is_empty
    assert engine.scheduler.commit(plan, StepResult(plan.step)) == []
    engine.runner.next_step = 2
    engine.add([1, 2])
    check_all(engine)


def test_plans_are_committed_in_order():
    engine = Engine(overlap=True)
    engine.add([1, 2])
    engine.plan()
    second = engine.scheduler.schedule()
    with pytest.raises(AssertionError, match=r"plan 1 .* but step 0 is next"):
        engine.scheduler.commit(second, StepResult(1, (RowResult((1,)),)))


# Ends ------------------------------------------------------------------------------------------------------------


@both_modes
def test_stops(overlap):
    outputs = outputs_until_stop([1, 2, 3], 8)
    last = outputs[4]
    end = outputs.index(last) + 1
    for fields, reason, stop_reason, length in [
        ({}, FinishReason.LENGTH, None, 8),
        ({"eos_token_ids": frozenset({last})}, FinishReason.STOP, None, end),
        ({"stop_token_ids": frozenset({last})}, FinishReason.STOP, last, end),
        ({"eos_token_ids": frozenset({last}), "stop_token_ids": frozenset({last})}, FinishReason.STOP, None, end),
        ({"stop_token_ids": frozenset({last}), "max_tokens": end}, FinishReason.STOP, last, end),
    ]:
        engine = Engine(overlap=overlap)
        request = engine.add([1, 2, 3], **fields)
        check_all(engine)
        assert (request.finish_reason, request.stop_reason) == (reason, stop_reason)
        assert request.output_token_ids == outputs[:length]
        delta = engine.received[request.request_id].last
        assert (delta.finish_reason, delta.stop_reason, delta.token_ids) == (
            reason,
            stop_reason,
            (outputs[length - 1],),
        )


@both_modes
def test_a_stop_string_ends_a_request_without_a_delta(overlap):
    engine = Engine(overlap=overlap)
    request, other = engine.add([1, 2, 3], 20), engine.add([3, 2], 20)
    while len(request.output_token_ids) < 4:
        engine.step()
    engine.stop(request, "enough")
    engine.stop(request, "again")
    assert (request.finish_reason, request.stop_reason) == (FinishReason.STOP, "enough")
    check_all(engine)
    assert len(request.output_token_ids) == 4  # what was in flight is dropped
    assert engine.received[request.request_id].last is None
    assert len(other.output_token_ids) == 20


@both_modes
@pytest.mark.parametrize("num_steps", range(6))
def test_abort_at_any_moment(num_steps, overlap):
    """B46: while waiting, in prefill, in decode, with a step in flight."""
    engine = Engine(max_tokens=3, num_blocks=14, overlap=overlap)
    long = engine.add([1] * 30, 4)
    streams = [engine.add([i, i], 20) for i in range(2, 5)]
    for _ in range(num_steps):
        engine.step()
    for request in (streams[1], streams[0]):
        engine.abort(request)
        assert engine.received[request.request_id].last.finish_reason is FinishReason.ABORT
        assert engine.scheduler.abort(request.request_id) is None
    assert engine.scheduler.abort("unknown") is None
    check_all(engine)
    assert len(long.output_token_ids) == 4
    assert len(streams[2].output_token_ids) == 20


def test_what_an_abort_frees_is_in_the_next_plan():
    engine = Engine(num_blocks=11, max_num_seqs=1, overlap=True)
    first = engine.add([1] * 30, 8)
    engine.step()
    second = engine.add([2] * 30, 8)
    engine.abort(first)
    plan = engine.step()
    assert plan.frees == (0,)
    assert [(new.request_id, new.row) for new in plan.admits] == [(second.request_id, 0)]
    check_all(engine)


@both_modes
def test_an_error_ends_one_request_only(overlap):
    engine = Engine(overlap=overlap)
    bad, good = engine.add([1] * 9, 20, fails_at=2), engine.add([2] * 9, 20)
    check_all(engine)
    assert len(bad.output_token_ids) == 2
    assert bad.finish_reason is FinishReason.ERROR
    assert engine.received[bad.request_id].last.error == "non-finite logits"
    assert len(good.output_token_ids) == 20


@both_modes
def test_what_a_failed_request_computed_is_not_reused(overlap):
    engine = Engine(overlap=overlap)
    shared = engine.add([1] * 8 + [2], 1)
    engine.run()
    bad = engine.add([1] * 9, 20, fails_at=8)
    engine.run()
    assert (shared.num_cached, bad.num_cached) == (0, 8)
    again = engine.add([1] * 9 + bad.output_token_ids + [0], 1)
    engine.run()
    assert again.num_cached == 8  # what others had computed before stays


# Prefix cache ----------------------------------------------------------------------------------------------------


@both_modes
def test_generated_blocks_are_hits(overlap):
    engine = Engine(overlap=overlap)
    first = engine.add([1, 2, 3], 14)
    check_all(engine)
    second = engine.add([1, 2, 3, *first.output_token_ids, 4], 2)
    check_all(engine)
    assert second.num_cached == 16
    assert engine.received[second.request_id].last.num_cached_tokens == 16


def test_a_hit_in_the_same_step():
    engine = Engine()
    first, second = engine.add([1] * 9, 4), engine.add([1] * 9, 4)
    plan = engine.step()
    assert [(row.start, row.num_tokens) for row in plan.rows] == [(0, 9), (8, 1)]
    assert second.blocks[0][:2] == first.blocks[0][:2]
    assert plan.rows[1].new_blocks == (tuple(second.blocks[0]),)  # the table so far, with its hits
    check_all(engine)


def test_a_hit_on_what_a_running_prompt_computes_in_the_same_step():
    engine = Engine(max_tokens=12)
    engine.add([1] * 17, 4)
    engine.step()
    second = engine.add([1] * 17, 4)
    plan = engine.step()
    assert [(row.start, row.num_tokens, row.emits) for row in plan.rows] == [(12, 5, True), (16, 1, True)]
    assert second.num_cached == 16
    check_all(engine)


def test_a_hit_on_blocks_of_a_step_in_flight():
    engine = Engine(overlap=True)
    engine.add([1] * 9, 4)
    engine.step()
    second = engine.add([1] * 9, 4)
    engine.step()
    assert second.num_cached == 8
    check_all(engine)


def test_caching_off_and_skipped_reads_compute_everything():
    for caching, skips in [(False, False), (True, True)]:
        engine = Engine(caching=caching)
        for _ in range(2):
            request = engine.add([1] * 9, 4, skip_prefix_cache_read=skips)
            check_all(engine)
            assert request.num_cached == 0
        assert bool(request.block_hashes) == caching
        assert engine.scheduler.stats.num_prefix_query_tokens == 0


def test_stats_count_hits_and_queries_in_tokens():
    engine = Engine()
    for _ in range(2):
        engine.add([1] * 9, 4)
        engine.run()
    stats = engine.scheduler.stats
    assert (stats.num_prefix_query_tokens, stats.num_prefix_hit_tokens) == (18, 8)
    assert stats.num_free_blocks == (99,)


def test_the_prefix_cache_is_reset_only_when_idle():
    engine = Engine(overlap=True)
    request = engine.add([1] * 9, 4)
    engine.step()
    assert not engine.scheduler.reset_prefix_cache()
    engine.abort(request)
    assert engine.scheduler.reset_prefix_cache()  # also while the aborted request's step is in flight
    again = engine.add([1] * 9, 4)
    check_all(engine)
    assert again.num_cached == 0


@both_modes
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 64])
@pytest.mark.parametrize("windows", [(3,), (None, 5), (None, 1, 7)])
def test_windows_in_a_pool_that_holds_only_windows(windows, max_tokens, overlap):
    groups = tuple(full_group() if window is None else window_group(window) for window in windows)
    num_blocks = tuple(1 + group.blocks_needed(40, max_tokens, 2) for group in groups)
    engine = Engine(groups, block_size=2, num_blocks=num_blocks, max_tokens=max_tokens, overlap=overlap)
    for prompt in ([1] * 30, [1] * 20 + [2] * 5, [3]):
        engine.add(prompt, 40)
    check_all(engine)


# Prompt log-probabilities ----------------------------------------------------------------------------------------


@both_modes
def test_prompt_logprobs_come_chunk_by_chunk(overlap):
    engine = Engine(max_tokens=4, overlap=overlap)
    request = engine.add([1, 2, 3, 4, 0, 1, 2, 3, 4], 2, sampling=RowSampling(num_prompt_logprobs=0))
    engine.step()
    engine.commit()
    assert sorted(engine.received[request.request_id].prompt_logprobs) == [1, 2, 3, 4]
    check_all(engine)


@both_modes
def test_prompt_logprobs_come_once_when_the_prompt_is_computed_twice(overlap):
    engine = Engine(num_blocks=11, overlap=overlap)
    engine.add([1] * 15, 20)
    second = engine.add([2] * 15, 20, sampling=RowSampling(num_prompt_logprobs=0), skip_prefix_cache_read=True)
    check_all(engine)
    assert second.num_preemptions > 0


# Invariants ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda scheduler, request: scheduler._free_rows.append(0), "rows are lost or shared"),
        (lambda scheduler, request: scheduler._running.pop(request), "a request is lost"),
        (lambda scheduler, request: scheduler._waiting.push(request), "two places"),
        (lambda scheduler, request: setattr(request, "num_inflight", 0), "awaits 0 tokens, 1 are in flight"),
        (lambda scheduler, request: setattr(request, "num_computed", 5), "computed 5"),
        (lambda scheduler, request: setattr(request, "status", RequestStatus.WAITING), "WAITING"),
        (lambda scheduler, request: request.blocks[0].pop(), "holders"),
    ],
)
def test_check_finds_damage(damage, message):
    engine = Engine(overlap=True)
    request = engine.add([1, 2, 3])
    engine.step()
    damage(engine.scheduler, request)
    with pytest.raises(AssertionError, match=message):
        engine.scheduler.check()
