"""Hypothesis drives the scheduler with a strict fake runner: whatever happens, everyone gets what it gets alone."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from motet.core.params import RowSampling
from motet.core.request import Request
from tests.sched.fake_runner import VOCAB_SIZE, Engine, check_all, full_group, least_blocks, window_group

GROUPS = [
    (full_group(), window_group(5)),
    (full_group(),),
    (window_group(3),),
    (full_group(), window_group(2), window_group(7)),
    (window_group(1),),
]
RARE_TOKENS = st.sampled_from([frozenset(), frozenset(), frozenset({0}), frozenset({1})])


def prompt_of(length: int, changed: int) -> list[int]:
    """Few distinct prompts, so that requests share prefixes of every length."""
    return [7 * i // 3 % VOCAB_SIZE if i != changed else 4 for i in range(length)]


ARRIVALS = st.fixed_dictionaries(
    {
        "length": st.sampled_from([5, 3, 9, 1, 14, 23]),
        "changed": st.integers(0, 20),
        "max_tokens": st.sampled_from([20, 12, 5, 1]),
        "eos_token_ids": RARE_TOKENS,
        "stop_token_ids": RARE_TOKENS,
        "priority": st.integers(0, 2),
        "arrival": st.sampled_from([0.0, 1.0]),
        "cache_salt": st.sampled_from([None, None, "a"]),
        "wants_prompt_logprobs": st.sampled_from([False, False, False, True]),
        "fails_at": st.sampled_from([None] * 8 + [0, 1, 6]),
    }
)
REQUEST_FIELDS = ("eos_token_ids", "stop_token_ids", "priority", "arrival", "cache_salt")


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(GROUPS),
        block_size=st.sampled_from([2, 1, 3, 4]),
        max_model_len=st.sampled_from([24, 20, 17, 9]),
        max_num_seqs=st.sampled_from([4, 3, 2, 1]),
        max_tokens=st.sampled_from([8, 64, 13, 5, 3, 2, 1]),
        spare=st.tuples(*[st.sampled_from([0, 1, 3, 6])] * 3),
        policy=st.sampled_from(["priority", "fcfs"]),
        caching=st.sampled_from([True, True, False]),
        overlap=st.sampled_from([True, False]),
    )
    def start(
        self, groups, block_size, max_model_len, max_num_seqs, max_tokens, spare, policy, caching, overlap
    ) -> None:
        num_blocks = tuple(
            least_blocks(group, block_size, max_model_len, max_tokens) + extra
            for group, extra in zip(groups, spare, strict=False)
        )
        self.engine = Engine(
            groups,
            block_size=block_size,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_tokens=max_tokens,
            policy=policy,
            caching=caching,
            overlap=overlap,
        )

    @property
    def open_requests(self) -> list[Request]:
        return [request for request in self.engine.requests.values() if not request.is_finished]

    @rule(crowd=st.lists(ARRIVALS, min_size=1, max_size=5))
    def add(self, crowd) -> None:
        for arrival in crowd:
            length = min(arrival["length"], self.engine.max_model_len - 1)
            wants_logprobs = arrival["wants_prompt_logprobs"]
            self.engine.add(
                prompt_of(length, arrival["changed"]),
                arrival["max_tokens"],
                sampling=RowSampling(num_prompt_logprobs=0 if wants_logprobs else None),
                skip_prefix_cache_read=wants_logprobs,
                fails_at=arrival["fails_at"],
                **{name: arrival[name] for name in REQUEST_FIELDS},
            )

    @rule(count=st.sampled_from([1, 2, 5, 9]))
    def steps(self, count) -> None:
        for _ in range(count):
            self.engine.step()

    @rule(count=st.sampled_from([1, 2, 3, 4]))
    def more_steps(self, count) -> None:
        self.steps(count)

    @rule(what=st.sampled_from(["commit", "abort", "stop", "reset"]), data=st.data())
    def disturb(self, what, data) -> None:
        if what == "commit":
            self.engine.commit()
        elif what == "reset":
            holds_blocks = self.engine.scheduler.num_running > 0
            assert self.engine.scheduler.reset_prefix_cache() != holds_blocks
        elif what == "abort" and self.open_requests:
            self.engine.abort(data.draw(st.sampled_from(self.open_requests), label="request"))
        elif what == "stop" and (answering := [request for request in self.open_requests if request.output_token_ids]):
            self.engine.stop(data.draw(st.sampled_from(answering), label="request"))

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        check_all(self.engine)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
