"""Random rows, and what Hugging Face's processors make of one row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from motet.core.params import RowSampling
from motet.ops.reference.greedy import greedy
from motet.sampling.columns import SamplingColumns, SamplingView, TokenHistory
from motet.sampling.sampler import SampledRows, Sampler


@dataclass(frozen=True)
class Row:
    sampling: RowSampling
    prompt: tuple[int, ...] = (1,)
    output: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)


def random_logits(seed: int, num_rows: int, vocab_size: int, scale: float = 3.0) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def view_of(rows: list[Row], vocab_size: int, places: list[int] | None = None) -> SamplingView:
    """The view of one entry per row; row n lives in batch row places[n]."""
    places = places or list(range(len(rows)))
    columns = SamplingColumns(max(places) + 1, vocab_size)
    token_ids = np.full((max(places) + 1, 64), vocab_size + 7, dtype=np.int32)  # stale cells hold nonsense
    prompt_len = np.zeros(max(places) + 1, dtype=np.int32)
    for place, row in zip(places, rows):
        columns.set(place, row.sampling)
        token_ids[place, : row.position] = row.prompt + row.output
        prompt_len[place] = len(row.prompt)
    positions = np.array([row.position for row in rows], dtype=np.int64)
    return columns.view(np.array(places), positions, TokenHistory(token_ids, prompt_len))


def sample(logits: Tensor, rows: list[Row], places: list[int] | None = None) -> SampledRows:
    return Sampler(greedy).sample(logits, view_of(rows, logits.shape[1], places))


def processed(logits: Tensor, row: Row) -> Tensor:
    """One row [V] -> [V] by Hugging Face's processors where there is one, and by vLLM's formulas where not."""
    params, scores = row.sampling, logits[None].clone()
    history, output = torch.tensor([row.prompt + row.output]), torch.tensor([row.output], dtype=torch.int64)
    if params.allowed_token_ids is not None:
        allowed = torch.tensor(params.allowed_token_ids)
        scores = torch.full_like(scores, -torch.inf).index_copy(1, allowed, scores[:, allowed])
    if params.bad_words:
        scores = NoBadWordsLogitsProcessor([list(word) for word in params.bad_words])(output, scores)
    if len(row.output) < params.min_tokens:
        scores[:, list(params.suppressed_until_min)] = -torch.inf
    for token_id, bias in params.logit_bias.items():
        scores[:, token_id] += bias
    if params.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(history, scores)
    for token_id in set(row.output):
        scores[:, token_id] -= params.frequency_penalty * row.output.count(token_id)
        scores[:, token_id] -= params.presence_penalty
    if params.is_greedy:
        return scores[0]
    scores = TemperatureLogitsWarper(float(params.temperature))(history, scores)
    if params.min_p > 0:
        scores = MinPLogitsWarper(params.min_p)(history, scores)
    if params.top_k > 0:
        scores = TopKLogitsWarper(params.top_k)(history, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(history, scores)
    return scores[0]


@st.composite
def rows(draw: st.DrawFn, vocab_size: int) -> Row:
    ids = st.integers(0, vocab_size - 1)
    few = st.lists(ids, max_size=4).map(tuple)
    sampling = RowSampling(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.7, 1.0, 1.9])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.3, 0.9])),
        top_k=draw(st.sampled_from([0, 0, 1, 5, vocab_size + 9])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.02, 0.5])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.5, -0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.7, -0.3])),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        min_tokens=draw(st.integers(0, 4)),
        suppressed_until_min=draw(few),
        logit_bias=draw(st.dictionaries(ids, st.floats(-9, 9, width=32), max_size=3)),
        allowed_token_ids=draw(st.none() | st.none() | st.lists(ids, min_size=1, max_size=9).map(tuple)),
        bad_words=draw(st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple)),
        num_logprobs=draw(st.none() | st.sampled_from([0, 1, 3, vocab_size])),
    )
    return Row(sampling, draw(st.lists(ids, min_size=1, max_size=8).map(tuple)), draw(few))
