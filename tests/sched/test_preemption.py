"""Who gives way when blocks run out, what is undone, and how it comes back."""

from __future__ import annotations

import pytest

from motet.core.request import RequestStatus
from tests.sched.fake_runner import Engine, check_all

both_modes = pytest.mark.parametrize("overlap", [False, True])


@both_modes
def test_first_come_victim_is_the_last_one_and_comes_back_first(overlap):
    engine = Engine(num_blocks=11, overlap=overlap)
    first, second = engine.add([1] * 15, 20), engine.add([2] * 15, 20)
    third = engine.add([3], 5)
    while second.status is not RequestStatus.PREEMPTED:
        plan = engine.step()
    assert first.status is RequestStatus.RUNNING
    assert plan.admits == ()  # no admissions in a step that preempted
    assert plan.frees == (1,)
    assert [request.request_id for request in engine.scheduler._waiting] == [second.request_id, third.request_id]
    assert second.num_preemptions == 1
    check_all(engine)
    assert first.num_preemptions == 0


def test_resumption_computes_prompt_and_output_again():
    engine = Engine(num_blocks=11, caching=False)
    engine.add([1] * 15, 20)
    second = engine.add([2] * 15, 20)
    while second.status is not RequestStatus.PREEMPTED:
        engine.step()
    num_outputs = len(second.output_token_ids)
    assert num_outputs > 0
    while not (plan := engine.step()).admits:
        pass
    (new,) = plan.admits
    assert new.prompt_len == 15
    assert new.token_ids == [2] * 15 + second.output_token_ids[:num_outputs]
    assert [row.num_tokens for row in plan.rows if row.row == new.row] == [15 + num_outputs]
    check_all(engine)


def test_resumption_can_hit_the_prefix_cache_and_num_cached_stays():
    engine = Engine(num_blocks=14, max_model_len=50)
    first, second = engine.add([1] * 15, 30), engine.add([2] * 15, 30)
    while second.status is not RequestStatus.PREEMPTED:
        engine.step()
    engine.abort(first)
    (row,) = engine.step().rows
    assert row.start >= 12  # what was not overwritten is found again
    assert second.num_cached == 0
    engine.run()
    engine.check_outcome(second)


def test_no_result_is_lost_when_its_request_is_preempted_in_flight():
    """B05: the token sampled before the preemption counts, once."""
    engine = Engine(num_blocks=11, overlap=True)
    engine.add([1] * 15, 20)
    second = engine.add([2] * 15, 20)
    while second.status is not RequestStatus.PREEMPTED:
        before = len(second.output_token_ids)
        plan = engine.scheduler.schedule()
        engine.scheduler.check()
        in_flight, engine.pending = engine.pending, (plan, engine.runner.launch(plan, engine.requests))
        if second.status is RequestStatus.PREEMPTED:
            assert second.num_inflight == 1
            assert in_flight is not None
        if in_flight is not None:
            engine._commit(*in_flight)
    assert len(second.output_token_ids) == before + 1
    assert second.num_inflight == 0
    check_all(engine)


def test_a_request_can_finish_while_it_is_preempted():
    """B05: the result in flight is the last one."""
    for max_tokens in range(1, 12):
        engine = Engine(num_blocks=11, overlap=True)
        engine.add([1] * 15, 25)
        engine.add([2] * 15, max_tokens)
        statuses = set()
        finish = engine.scheduler._finish

        def spy(request, *reasons, statuses=statuses, finish=finish):
            statuses.add(request.status)
            finish(request, *reasons)

        engine.scheduler._finish = spy
        check_all(engine)
        if RequestStatus.PREEMPTED in statuses:
            return
    pytest.fail("no request finished while it was preempted")


def test_a_preempted_request_does_not_return_before_its_result_in_flight():
    """B05: there is room again at once, but one of its tokens is not known yet."""
    engine = Engine(num_blocks=11, overlap=True)
    first, second = engine.add([1] * 19, 2), engine.add([2] * 19, 20)
    engine.step()
    engine.step()
    plan = engine.scheduler.schedule()
    assert second.status is RequestStatus.PREEMPTED
    assert second.num_inflight == 1
    assert plan.rows == ()  # the first request waits for its last token
    engine.runner.launch(plan, engine.requests)
    engine.abort(first)
    plan = engine.scheduler.schedule()
    assert plan.admits == ()
    engine.runner.launch(plan, engine.requests)
    engine.commit()
    assert [new.token_ids for new in engine.step().admits] == [second.token_ids()]
    check_all(engine)


@both_modes
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_many_long_requests_in_a_pool_for_one_and_a_half(policy, overlap):
    """B05."""
    engine = Engine(num_blocks=16, max_num_seqs=8, policy=policy, overlap=overlap)
    for index in range(8):
        engine.add([index % 5] * (3 + index), 30, priority=index % 3)
    check_all(engine)
    assert engine.scheduler.stats.num_preemptions > 8


@both_modes
def test_a_victim_that_is_already_planned_gives_everything_back(overlap):
    """B07: the later but more urgent request needs the blocks of one that was planned before it in the same step."""
    engine = Engine(num_blocks=11, policy="priority", overlap=overlap, max_tokens=32)
    mild = engine.add([1] * 17, 20, priority=5)
    engine.step()
    urgent = engine.add([2] * 20, 20, priority=0)
    was_planned = []
    drop = engine.scheduler._preempt

    def spy(victim, draft):
        was_planned.append(victim in draft.rows)
        before = (draft.budget, victim.num_inflight)
        num_tokens = draft.rows[victim].num_tokens if victim in draft.rows else 0
        drop(victim, draft)
        assert draft.budget == before[0] + num_tokens
        assert victim.num_inflight == before[1] - num_tokens  # these rows emit with one token
        assert victim not in draft.rows

    engine.scheduler._preempt = spy
    while mild.status is not RequestStatus.PREEMPTED:
        plan = engine.step()
    assert was_planned == [True]
    assert [row.request_id for row in plan.rows] == [urgent.request_id]
    assert plan.frees == (0,)
    check_all(engine)


def test_no_admissions_in_a_step_that_preempted():
    """Even when the first in the queue would now find a row and blocks."""
    engine = Engine(num_blocks=11, policy="priority", max_num_seqs=2)
    engine.add([1] * 20, 20, priority=0)
    mild = engine.add([2] * 17, 20, priority=5)
    engine.step()
    between = engine.add([3], 2, priority=3)
    while mild.status is not RequestStatus.PREEMPTED:
        plan = engine.step()
        assert plan.admits == ()
    assert [new.request_id for new in engine.step().admits] == [between.request_id]
    check_all(engine)


def test_the_least_urgent_request_gives_way_itself():
    engine = Engine(num_blocks=11, policy="priority")
    urgent, mild = engine.add([1] * 14, 20, priority=0), engine.add([2] * 15, 20, priority=1)
    while mild.status is not RequestStatus.PREEMPTED:
        assert urgent.status is not RequestStatus.PREEMPTED
        engine.step()
    check_all(engine)
    assert urgent.num_preemptions == 0


def test_admission_follows_priority_then_arrival():
    engine = Engine(policy="priority", max_num_seqs=1)
    ranks = [(1, 0.0), (0, 2.0), (0, 1.0), (-1, 9.0), (0, 1.0)]
    names = [engine.add([1, 2], 1, priority=p, arrival=a).request_id for p, a in ranks]
    admitted = []
    while engine.scheduler.has_work:
        admitted += [new.request_id for new in engine.step().admits]
    assert admitted == [names[i] for i in (3, 2, 4, 1, 0)]
    check_all(engine)


def test_abort_of_a_preempted_request():
    engine = Engine(num_blocks=11, overlap=True)
    engine.add([1] * 15, 20)
    second = engine.add([2] * 15, 20)
    while second.status is not RequestStatus.PREEMPTED:
        plan = engine.scheduler.schedule()
        result = engine.runner.launch(plan, engine.requests)
        in_flight, engine.pending = engine.pending, (plan, result)
        if second.status is RequestStatus.PREEMPTED:
            engine.abort(second)
            assert in_flight is not None
            engine._commit(*in_flight)
            break
        if in_flight is not None:
            engine._commit(*in_flight)
    check_all(engine)
