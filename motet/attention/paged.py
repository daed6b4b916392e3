"""Attention over the paged cache with the reference operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from motet.ops.reference.attention import Segment, attend, write_kv
from motet.tensors.forward import StepRows
from motet.tensors.states import PagedState

MAX_QUERIES = 256  # per segment: bounds the size of a score matrix


@dataclass(frozen=True)
class PagedPlan:
    """slot_mapping: int64 [T], where each token's K and V go."""

    slot_mapping: Tensor
    segments: list[Segment]


class PagedAttention:
    """Rows with one query share one padded segment; longer rows get segments of their own, cut at MAX_QUERIES."""

    def plan_step(self, rows: StepRows) -> PagedPlan:
        layout, block_size = rows.layout, rows.block_size
        blocks = rows.block_table[layout.token_rows, layout.positions // block_size].astype(np.int64)
        counts = layout.counts.tolist()
        single = [row for row, count in enumerate(counts) if count == 1]
        segments = [self._segment(rows, single, 0, 1)] if single else []
        for row, count in enumerate(counts):
            if count > 1:
                segments += [
                    self._segment(rows, [row], offset, min(MAX_QUERIES, count - offset))
                    for offset in range(0, count, MAX_QUERIES)
                ]
        return PagedPlan(torch.from_numpy(blocks * block_size + layout.positions % block_size), segments)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PagedState,
        plan: PagedPlan,
        scale: float,
        soft_cap: float | None = None,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        scales = (state.k_scale, state.v_scale)
        write_kv(k, v, state.k, state.v, plan.slot_mapping, *scales)
        return attend(q, state.k, state.v, plan.segments, scale, soft_cap, alibi_slopes, sinks, *scales)

    @staticmethod
    def _slots(rows: StepRows, row: int, start: int, stop: int) -> Tensor:
        positions = np.arange(start, stop)
        blocks = rows.block_table[row, positions // rows.block_size].astype(np.int64)
        return torch.from_numpy(blocks * rows.block_size + positions % rows.block_size)

    def _segment(self, rows: StepRows, members: list[int], offset: int, num_queries: int) -> Segment:
        """Queries [offset, offset + num_queries) of each member's chunk, and every key that one of them can see."""
        starts = rows.layout.starts[members]
        first_query = torch.from_numpy(starts + offset)
        query_positions = first_query[:, None] + torch.arange(num_queries)
        stops = (starts + offset + num_queries).tolist()
        window = rows.window if rows.window is not None else max(stops)
        begins = [max(0, stop - num_queries - window + 1) for stop in stops]
        num_keys = max(stop - begin for stop, begin in zip(stops, begins, strict=True))
        key_slots = torch.zeros(len(members), num_keys, dtype=torch.int64)
        for index, row in enumerate(members):
            key_slots[index, : stops[index] - begins[index]] = self._slots(rows, row, begins[index], stops[index])
        key_positions = torch.tensor(begins)[:, None] + torch.arange(num_keys)
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        return Segment(
            queries=torch.from_numpy(rows.layout.firsts[members] + offset)[:, None] + torch.arange(num_queries),
            key_slots=key_slots,
            query_positions=query_positions,
            key_positions=key_positions,
            visible=((distance >= 0) & (distance < window)).unsqueeze(1),
        )
