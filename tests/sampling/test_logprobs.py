from __future__ import annotations

import pytest
import torch
from torch import Tensor

from motet.core.result import TokenLogprobs
from motet.sampling import blocks
from motet.sampling.logprobs import token_logprobs
from tests.sampling.rows import random_logits


def prompt_logprobs(logits: Tensor, target_ids: Tensor, num_top: int) -> list[TokenLogprobs]:
    return token_logprobs(logits, target_ids, [num_top] * len(target_ids))


def test_values_order_and_rank():
    logits, token_ids = random_logits(1, 5, 200), torch.tensor([0, 199, 17, 3, 3])
    token_ids[4] = logits[4].argmax()
    expected = logits.double().log_softmax(dim=1)
    entries = token_logprobs(logits, token_ids, [0, 1, 5, 200, 999])
    for n, (entry, num_top) in enumerate(zip(entries, [0, 1, 5, 200, 200])):
        assert len(entry.token_ids) == len(entry.logprobs) == 1 + num_top
        assert entry.token_ids == [int(token_ids[n]), *expected[n].argsort(descending=True)[:num_top].tolist()]
        assert entry.logprobs == pytest.approx(expected[n, entry.token_ids].tolist(), abs=1e-5)
        assert entry.rank == 1 + int((logits[n] > logits[n, token_ids[n]]).sum())
    assert entries[4].rank == 1
    assert entries[4].token_ids[0] == entries[4].token_ids[1]  # a chosen token of the top is listed there too


def test_equals_share_the_worse_rank_and_are_listed_by_id():
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0, 1.0]])
    ranks = [prompt_logprobs(logits, torch.tensor([i]), 0)[0].rank for i in range(6)]
    assert ranks == [6, 2, 5, 2, 5, 5]
    assert prompt_logprobs(logits, torch.tensor([0]), 4)[0].token_ids == [0, 1, 3, 2, 4]


def test_rows_are_independent_of_mates_and_blocks(monkeypatch: pytest.MonkeyPatch):
    logits = random_logits(2, 40, 333).bfloat16().float()  # many equals
    token_ids, num_top = torch.arange(40) * 8, [n % 7 if n % 5 else 333 for n in range(40)]
    together = token_logprobs(logits, token_ids, num_top)
    alone = [token_logprobs(logits[n : n + 1], token_ids[n : n + 1], num_top[n : n + 1])[0] for n in range(40)]
    assert together == alone
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 1000)
    assert token_logprobs(logits, token_ids, num_top) == together


def test_prompt_logprobs_in_chunks_equal_the_whole():
    logits, target_ids = random_logits(3, 23, 77), torch.arange(23) * 3
    whole = prompt_logprobs(logits, target_ids, 2)
    for size in (1, 3, 7):
        parts = [prompt_logprobs(logits[i : i + size], target_ids[i : i + size], 2) for i in range(0, 23, size)]
        assert [entry for part in parts for entry in part] == whole
    assert [entry.token_ids[0] for entry in whole] == target_ids.tolist()


def test_logits_are_left_alone_and_no_rows_give_no_entries():
    logits = random_logits(4, 3, 50)
    before = logits.clone()
    prompt_logprobs(logits, torch.tensor([1, 2, 3]), 5)
    assert torch.equal(logits, before)
    assert prompt_logprobs(logits[:0], torch.empty(0, dtype=torch.int64), 5) == []


def test_a_row_without_a_finite_maximum_has_nothing_but_nan_and_spares_its_mates():
    logits = random_logits(5, 4, 50)
    good = prompt_logprobs(logits, torch.tensor([3, 3, 3, 3]), 2)
    logits[0, 7], logits[1, 7], logits[2] = torch.nan, torch.inf, -torch.inf
    entries = prompt_logprobs(logits, torch.tensor([3, 3, 3, 3]), 2)
    for entry in entries[:3]:
        assert entry.rank == 0
        assert all(value != value for value in entry.logprobs)
    assert entries[3] == good[3]
