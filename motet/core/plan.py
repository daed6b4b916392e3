"""The plan of one step: plain data that the scheduler builds and nobody changes.

A plan can be encoded with msgspec, sent to other ranks, written to a file and replayed.
"""

from __future__ import annotations

import msgspec

from motet.core.params import RowSampling


class AdapterLoad(msgspec.Struct, frozen=True):
    """The adapter of this key takes the place of what is in the slot."""

    slot: int
    key: str


class NewRow(msgspec.Struct, frozen=True):
    """A request gets a row of the persistent batch (first admission, or resumption after a preemption).

    adapter_slot: 0 is no adapter
    """

    row: int
    request_id: str
    token_ids: list[int]  # all tokens known so far: prompt, then output
    prompt_len: int
    sampling: RowSampling
    adapter_slot: int = 0


class RowPlan(msgspec.Struct, frozen=True):
    """The tokens [start, start + num_tokens) of one request are computed in this step.

    Token ids are not part of the plan: the persistent batch has them, also those that the step before is
    still sampling. `new_blocks[g]` is appended to the row's block table of state group g (0 = null block).
    `emits`: the chunk ends at the last known token, so that a next token is sampled.
    `drafts`: guesses of what follows the last known token; they are the last of the row's tokens, and the step samples
    after each of them too.
    """

    row: int
    request_id: str
    start: int
    num_tokens: int
    emits: bool
    new_blocks: tuple[tuple[int, ...], ...]
    drafts: tuple[int, ...] = ()


class StepPlan(msgspec.Struct, frozen=True):
    """Applied in the order loads, frees, admits, rows. `rows` is the only order of requests within the step."""

    step: int
    rows: tuple[RowPlan, ...] = ()
    admits: tuple[NewRow, ...] = ()
    frees: tuple[int, ...] = ()
    loads: tuple[AdapterLoad, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.admits or self.frees)

    @classmethod
    def dummy(cls, num_tokens: int, block_size: int, num_groups: int, num_rows: int = 1) -> StepPlan:
        """A plan with real work and no owner, for warm-up and profiling: rows 0.. read and write the null block only.

        `num_tokens` are dealt evenly to `num_rows` rows (no more than tokens), each of which emits. Free the rows with
        `StepPlan.free_rows(num_rows)` afterwards.
        """
        assert 1 <= num_rows <= num_tokens, f"{num_tokens} tokens for {num_rows} rows"
        sizes = [num_tokens // num_rows + (row < num_tokens % num_rows) for row in range(num_rows)]
        greedy = RowSampling(temperature=0.0)
        return cls(
            step=-1,
            admits=tuple(NewRow(row, f"dummy-{row}", [0] * size, size, greedy) for row, size in enumerate(sizes)),
            rows=tuple(
                RowPlan(row, f"dummy-{row}", 0, size, True, ((0,) * -(-size // block_size),) * num_groups)
                for row, size in enumerate(sizes)
            ),
        )

    @classmethod
    def free_rows(cls, num_rows: int) -> StepPlan:
        return cls(step=-1, frees=tuple(range(num_rows)))
