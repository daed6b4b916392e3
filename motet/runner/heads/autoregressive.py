"""From logits to the next token of each request."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch

from motet.core.plan import RowPlan, StepPlan
from motet.core.result import RowResult, StepResult, TokenLogprobs
from motet.models.registry import Model
from motet.runner.batch import PersistentBatch
from motet.sampling.columns import SamplingView
from motet.sampling.verify import Verdict, Verifier
from motet.spec.drafter import Drafter, Verified
from motet.tensors.forward import ForwardBatch, ForwardOutput, last_of_each

LOGPROB_ROWS = 128  # prompt positions whose logits are in memory at once
NOTHING = RowResult()


class AutoregressiveHead:
    """Samples for every row that emits and verifies its drafts; tokens go into the persistent batch, new drafts out."""

    def __init__(self, model: Model, verifier: Verifier, drafter: Drafter, batch: PersistentBatch) -> None:
        self.model = model
        self.verifier = verifier
        self.drafter = drafter
        self.batch = batch

    def finish(self, plan: StepPlan, step: ForwardBatch, out: ForwardOutput) -> StepResult:
        for new in plan.admits:
            self.drafter.clear(new.row)
        results = [RowResult(prompt_logprobs=entries) if entries else NOTHING for entries in self._prompts(plan, out)]
        emitting = [index for index, row in enumerate(plan.rows) if row.emits]
        if not emitting:
            return StepResult(plan.step, tuple(results))
        rows = [plan.rows[index] for index in emitting]
        verdicts = self.verifier.verify(out.logits, self._view(rows), [row.drafts for row in rows])
        ends = list(accumulate(row.num_tokens for row in plan.rows))
        verified = [self._commit(plan.rows[i], ends[i], verdict) for i, verdict in zip(emitting, verdicts, strict=True)]
        drafts = self.drafter.propose(step, out, verified, self.batch.history)
        for index, verdict, guesses in zip(emitting, verdicts, drafts, strict=True):
            results[index] = (
                RowResult(error=verdict.error)
                if verdict.error
                else RowResult(verdict.token_ids, verdict.logprobs, results[index].prompt_logprobs, guesses)
            )
        return StepResult(plan.step, tuple(results))

    def _view(self, rows: list[RowPlan]) -> SamplingView:
        """For each row the token behind its last known one and behind each draft."""
        counts = np.array([1 + len(row.drafts) for row in rows])
        ends = np.array([row.start + row.num_tokens + 1 for row in rows], np.int64)
        batch_rows = np.array([row.row for row in rows]).repeat(counts)
        return self.batch.sampling.view(batch_rows, last_of_each(ends, counts), self.batch.history)

    def _commit(self, row: RowPlan, end: int, verdict: Verdict) -> Verified:
        """end: of the row's tokens in the step.

        After an error any token will do: the request ends when this result is committed.
        """
        token_ids = verdict.token_ids or (0,)
        first = row.start + row.num_tokens - len(row.drafts)
        for position, token_id in enumerate(token_ids, first):
            self.batch.commit(row.row, position, token_id)
        num_accepted = len(token_ids) - 1
        last = end - 1 - len(row.drafts) + num_accepted
        return Verified(row.row, last, first + len(token_ids), len(row.drafts), num_accepted)

    def _prompts(self, plan: StepPlan, out: ForwardOutput) -> list[tuple[TokenLogprobs, ...]]:
        """For each row of the plan, the entries of the prompt tokens that follow the chunk's tokens."""
        entries, first = [], 0
        for row in plan.rows:
            entries.append(tuple(self._row_prompt_logprobs(row, first, out)))
            first += row.num_tokens
        return entries

    def _row_prompt_logprobs(self, row: RowPlan, first: int, out: ForwardOutput) -> list[TokenLogprobs]:
        wanted = self.batch.sampling.num_prompt_logprobs(row.row)
        if wanted is None:
            return []
        stop = min(row.start + row.num_tokens, int(self.batch.prompt_len[row.row]) - 1)
        found: list[TokenLogprobs] = []
        for start in range(row.start, stop, LOGPROB_ROWS):
            count = min(LOGPROB_ROWS, stop - start)
            rows = torch.arange(count) + (first + start - row.start)
            targets = self.batch.token_ids[row.row, start + 1 : start + 1 + count].astype(np.int64)
            logits = self.model.logits(out.hidden, rows)
            found += self.verifier.sampler.token_logprobs(logits, torch.from_numpy(targets), [wanted] * count)
        return found
