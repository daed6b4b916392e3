"""From logits to the next token of each request."""

from __future__ import annotations

import numpy as np
import torch

from motet.core.plan import RowPlan, StepPlan
from motet.core.result import RowResult, StepResult, TokenLogprobs
from motet.models.registry import Model
from motet.runner.batch import PersistentBatch
from motet.sampling.sampler import Sampler
from motet.tensors.forward import ForwardBatch, ForwardOutput

LOGPROB_ROWS = 128  # prompt positions whose logits are in memory at once
NOTHING = RowResult()


class AutoregressiveHead:
    """Samples for every row that emits and writes the token into the persistent batch."""

    def __init__(self, model: Model, sampler: Sampler, batch: PersistentBatch) -> None:
        self.model = model
        self.sampler = sampler
        self.batch = batch

    def finish(self, plan: StepPlan, step: ForwardBatch, out: ForwardOutput) -> StepResult:
        prompts = self._prompt_logprobs(plan, out)
        emitting = [row for row in plan.rows if row.emits]
        if not emitting:
            return StepResult(plan.step, tuple(self._result(prompts[i]) for i in range(len(plan.rows))))
        positions = np.array([row.start + row.num_tokens for row in emitting], np.int64)
        view = self.batch.sampling.view(np.array([row.row for row in emitting]), positions, self.batch.history)
        sampled = self.sampler.sample(out.logits, view)
        results, index = [], 0
        for i, row in enumerate(plan.rows):
            if not row.emits:
                results.append(self._result(prompts[i]))
                continue
            token_id, logprobs, error = sampled.token_ids[index], sampled.logprobs[index], sampled.errors[index]
            index += 1
            # After an error any token will do: the request ends when this result is committed.
            self.batch.commit(row.row, row.start + row.num_tokens, max(token_id, 0))
            results.append(
                RowResult(error=error) if error else RowResult((token_id,), (logprobs,) if logprobs else (), prompts[i])
            )
        return StepResult(plan.step, tuple(results))

    @staticmethod
    def _result(prompt: tuple[TokenLogprobs, ...]) -> RowResult:
        return RowResult(prompt_logprobs=prompt) if prompt else NOTHING

    def _prompt_logprobs(self, plan: StepPlan, out: ForwardOutput) -> list[tuple[TokenLogprobs, ...]]:
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
            found += self.sampler.token_logprobs(logits, torch.from_numpy(targets), [wanted] * count)
        return found
