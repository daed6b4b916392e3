"""Attention over the paged cache with the C++ kernels: see motet.ops.cpu.attention for what it promises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from motet.ops.cpu.attention import PagedRows, paged_attention, write_kv
from motet.ops.cpu.program import Count, Recording
from motet.ops.cpu.target import Target
from motet.tensors.forward import StepRows
from motet.tensors.states import PagedState

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class CpuPagedPlan:
    """slot_mapping: int64 [T], where each token's K and V go."""

    slot_mapping: Tensor
    rows: PagedRows


class CpuPagedAttention:
    """An AttentionBackend for CPU tensors of float32, bfloat16 and float16. Needs motet.ops.cpu.is_available().

    target: where its kernel calls go, that of the ops where both are recorded together
    """

    def __init__(self, target: Target | None = None) -> None:
        self.target = target or Target()

    def plan_step(self, rows: StepRows) -> CpuPagedPlan:
        """Raises ValueError where the block table has no block for a position of a row."""
        layout, block_size = rows.layout, rows.block_size
        num_rows, num_columns = len(layout.starts), -(-layout.end // block_size)
        if num_columns > rows.block_table.shape[1] or num_rows > rows.block_table.shape[0]:
            raise ValueError(
                f"block_table must have {num_rows} rows of {num_columns} blocks, got {[*rows.block_table.shape]}"
            )
        blocks = np.ascontiguousarray(rows.block_table[:num_rows, :num_columns])
        last_block = int(blocks.view(np.uint32).max(initial=0))  # a negative one is larger than all others
        if last_block > INT32_MAX:
            raise ValueError(f"block_table must not be negative, got {int(blocks.min())}")
        columns = layout.positions // block_size
        slots = blocks[layout.token_rows, columns] * np.int64(block_size) + (layout.positions - columns * block_size)
        return CpuPagedPlan(
            torch.from_numpy(slots),
            PagedRows(
                rows=torch.from_numpy(np.array([layout.starts, layout.counts, layout.firsts], np.int32)),
                block_table=torch.from_numpy(blocks),
                num_rows=num_rows,
                table_stride=num_columns,
                num_tokens=len(slots),
                num_blocks=last_block + 1,
                block_size=rows.block_size,
                window=rows.window or 0,
            ),
        )

    def record_plan(
        self, recording: Recording, tokens: Count, requests: Count, columns: Count, block_size: int, window: int | None
    ) -> CpuPagedPlan:
        """A plan that stands for every step's; `step_inputs` of a real one gives what it asks the recording for."""
        slot_mapping = recording.input(tokens, dtype=torch.int64)
        rows = recording.input(requests, dtype=torch.int32)
        block_table = recording.input(requests, dtype=torch.int32)
        return CpuPagedPlan(
            slot_mapping,
            PagedRows(rows, block_table, requests.code, columns.code, tokens, 0, block_size, window or 0),
        )

    @staticmethod
    def step_inputs(plan: CpuPagedPlan) -> list[int]:
        """Addresses of the inputs that `record_plan` declared, in its order."""
        return [plan.slot_mapping.data_ptr(), plan.rows.rows.data_ptr(), plan.rows.block_table.data_ptr()]

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PagedState,
        plan: CpuPagedPlan,
        scale: float,
        soft_cap: float | None = None,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if plan.rows.num_blocks * plan.rows.block_size > state.k.shape[0]:
            raise ValueError(f"the block table names {plan.rows.num_blocks} blocks, more than the caches have")
        scales = (state.k_scale, state.v_scale)
        write_kv(self.target, k, v, state.k, state.v, plan.slot_mapping, *scales)
        return paged_attention(
            self.target, q, state.k, state.v, plan.rows, scale, soft_cap, alibi_slopes, sinks, *scales
        )
