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
        starts, counts = np.array(rows.starts, np.int64), np.array(rows.num_tokens, np.int64)
        firsts = np.cumsum(counts) - counts
        num_tokens = int(counts.sum())
        num_columns = -(-int((starts + counts).max(initial=0)) // rows.block_size)
        if num_columns > rows.block_table.shape[1] or len(starts) > rows.block_table.shape[0]:
            raise ValueError(
                f"block_table must have {len(starts)} rows of {num_columns} blocks, got {list(rows.block_table.shape)}"
            )
        if num_tokens and int(counts.min()) < 1:
            raise ValueError(f"every row needs a token, got {rows.num_tokens}")
        table = rows.block_table[: len(starts), :num_columns].to(torch.int32).contiguous()
        blocks = table.numpy()
        if blocks.size and int(blocks.min()) < 0:
            raise ValueError(f"block_table must not be negative, got {int(blocks.min())}")
        positions = np.arange(num_tokens) + np.repeat(starts - firsts, counts)
        columns, offsets = np.divmod(positions, rows.block_size)
        slots = blocks[np.repeat(np.arange(len(starts)), counts), columns].astype(np.int64) * rows.block_size + offsets
        return CpuPagedPlan(
            torch.from_numpy(slots),
            PagedRows(
                rows=torch.from_numpy(np.stack([starts, counts, firsts]).astype(np.int32)),
                block_table=table,
                num_rows=len(starts),
                table_stride=num_columns,
                num_tokens=num_tokens,
                num_blocks=int(blocks.max(initial=-1)) + 1,
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
