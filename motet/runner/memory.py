"""From bytes to blocks."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from motet.core.config import CacheConfig, SchedulerConfig
from motet.core.errors import CapacityError
from motet.core.state import Capacity, StateGroup

CPU_SHARE = 0.5  # of the available memory, when memory_utilization is not given: others live on this machine too
CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = CGROUP) -> int:
    """Memory that this process may still take: the machine's, or what its cgroup (version 1 or 2) leaves."""
    free = [int(psutil.virtual_memory().available)]
    for limit_file, usage_file, stat_file, cache_key in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        limit, usage = _read_int(cgroup / limit_file), _read_int(cgroup / usage_file)
        if limit is not None and usage is not None:
            free.append(limit - usage + _read_stat(cgroup / stat_file, cache_key))
    return max(0, min(free))


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such cgroup, or "max"
        return None


def _read_stat(path: Path, key: str) -> int:
    """Page cache that the kernel gives back when asked for memory."""
    try:
        lines = dict(line.split() for line in path.read_text().splitlines())
        return int(lines.get(key, 0))
    except (OSError, ValueError):
        return 0


def inner_width(config: dict[str, Any], hidden_size: int) -> int:
    """Of a checkpoint's feed-forward blocks, as `activation_bytes` takes it. A token of a mixture of experts has a row
    for each of its experts, and with it a copy of its input or of what the expert gives."""
    dense = int(config.get("intermediate_size") or 4 * hidden_size)
    expert = int(config.get("moe_intermediate_size") or dense)
    return max(dense, int(config.get("num_experts_per_tok") or 0) * (expert + -(-hidden_size // 3)))


def activation_bytes(
    scheduler: SchedulerConfig, hidden_size: int, inner_size: int, vocab_size: int, num_drafts: int = 0
) -> int:
    """An upper estimate of what one step needs beside weights and KV: a few copies of the widest activation of all its
    tokens, and the float32 logits of all its rows four times (sorting and noise)."""
    tokens = scheduler.max_num_batched_tokens
    rows = min(scheduler.max_num_seqs * (1 + num_drafts), tokens)
    return tokens * (4 * hidden_size + 3 * inner_size) * 4 + rows * vocab_size * 4 * 4


def plan_capacity(
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    groups: tuple[StateGroup, ...],
    max_model_len: int,
    budget_bytes: int,
) -> Capacity:
    """How many blocks each group gets.

    The budget is split in proportion to what one request of max_model_len holds in each group, so that all groups run
    out together; and no group gets more than max_num_seqs such requests can use. Block 0 (null) comes on top.
    """
    block_size, chunk = cache.block_size, scheduler.max_num_batched_tokens
    if cache.num_blocks_override is not None:
        return Capacity(block_size, (cache.num_blocks_override,) * len(groups))
    per_request = [group.blocks_needed(max_model_len, chunk, block_size) for group in groups]
    num_requests = min(budget_bytes / request_bytes(groups, max_model_len, chunk, block_size), scheduler.max_num_seqs)
    return Capacity(block_size, tuple(int(num_requests * blocks) + 1 for blocks in per_request))


def request_bytes(groups: tuple[StateGroup, ...], num_tokens: int, chunk: int, block_size: int) -> int:
    """Most that one request of `num_tokens` holds at once when up to `chunk` tokens are computed per step."""
    return sum(
        group.blocks_needed(num_tokens, chunk, block_size) * block_size * group.bytes_per_token for group in groups
    )


def check_budget(
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    groups: tuple[StateGroup, ...],
    max_model_len: int,
    budget_bytes: int,
) -> None:
    """Raises CapacityError when the budget is too small for one request of max_model_len."""
    chunk, block_size = scheduler.max_num_batched_tokens, cache.block_size
    needed = request_bytes(groups, max_model_len, chunk, block_size)
    if cache.num_blocks_override is not None or needed <= budget_bytes:
        return
    by_len = partial(request_bytes, groups, chunk=chunk, block_size=block_size)
    longest = bisect_right(range(max_model_len), budget_bytes, key=by_len) - 1
    shorter = f"lower max_model_len to at most {longest}, or " if longest >= 2 else ""
    raise CapacityError(
        f"one request of max_model_len={max_model_len} tokens needs {_mib(needed)} of KV cache, but its share of the "
        f"memory is {_mib(budget_bytes)}; {shorter}raise kv_cache_memory_bytes or gpu_memory_utilization"
    )


def check_fits(capacity: Capacity, groups: tuple[StateGroup, ...], available: int) -> None:
    """Raises CapacityError when the blocks that were asked for take more than `available` bytes."""
    needed = sum(
        blocks * capacity.block_size * group.bytes_per_token
        for blocks, group in zip(capacity.num_blocks, groups, strict=True)
    )
    if needed > available:
        raise CapacityError(
            f"the KV cache that was asked for takes {_mib(needed)}, but only {_mib(available)} of memory are free; "
            "lower kv_cache_memory_bytes or num_blocks_override, or leave them out"
        )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"


def describe_capacity(capacity: Capacity, groups: tuple[StateGroup, ...]) -> str:
    """One line for the log: tokens and bytes of each group."""
    parts = []
    for blocks, group in zip(capacity.num_blocks, groups, strict=True):
        tokens = (blocks - 1) * capacity.block_size
        mib = blocks * capacity.block_size * group.bytes_per_token / 2**20
        parts.append(f"{group.name}: {blocks - 1} blocks of {capacity.block_size} = {tokens} tokens, {mib:.0f} MiB")
    return "; ".join(parts)
