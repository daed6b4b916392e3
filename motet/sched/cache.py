"""The block tables of all requests over all state groups, and the prefix cache that lies in the same blocks.

A request has one table per group, all of the same length: entry i of group g is the block with its tokens
[i * block_size, (i + 1) * block_size), or the null block where no later query of this request can look. Allocation is
all or nothing over the groups. What differs between kinds of attention is in FullAttention and SlidingWindow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from motet.core.errors import CapacityError
from motet.core.request import Request
from motet.core.state import Capacity, StateGroup
from motet.sched.block_hash import ChainHasher, Hasher, NoHasher
from motet.sched.block_pool import NULL_BLOCK, BlockPool

NewBlocks = tuple[tuple[int, ...], ...]  # [group][i]: what is appended to a request's table


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


class GroupCache(Protocol):
    """What one kind of attention needs of its pool. Positions are token positions within a request."""

    pool: BlockPool

    def first_seen_block(self, query: int) -> int:
        """Index of the earliest block that the query at this position, or any later one, can see."""

    def num_hit_blocks(self, digests: Sequence[bytes], limit: int) -> int:
        """Largest k <= limit such that a request can start at block k with what is cached."""


class FullAttention:
    """Every query sees all earlier keys: a hit is an unbroken run from the start, and no block leaves early."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self._block_size = block_size

    def first_seen_block(self, query: int) -> int:
        return 0

    def num_hit_blocks(self, digests: Sequence[bytes], limit: int) -> int:
        for block in range(limit):
            if self.pool.find(digests[block]) is None:
                return block
        return limit


class SlidingWindow:
    """Query i sees key j when i - j < window: a hit needs the last window - 1 keys, and older blocks leave early."""

    def __init__(self, pool: BlockPool, block_size: int, window: int) -> None:
        self.pool = pool
        self._block_size = block_size
        self._window = window

    def first_seen_block(self, query: int) -> int:
        return max(0, query - self._window + 1) // self._block_size

    def num_hit_blocks(self, digests: Sequence[bytes], limit: int) -> int:
        end, block = limit, limit - 1
        while block >= self.first_seen_block(end * self._block_size):
            if self.pool.find(digests[block]) is None:
                end = block
            block -= 1
        return end


@dataclass(frozen=True)
class PrefixHit:
    """What the prefix cache has for a request: tables that hold its first `num_tokens` tokens, not yet held for it."""

    num_blocks: int
    num_tokens: int
    tables: tuple[tuple[int, ...], ...]


class StateCache:
    """Owns the pools; writes `blocks`, `block_hashes` and `num_registered` of requests."""

    def __init__(
        self,
        groups: tuple[StateGroup, ...],
        capacity: Capacity,
        enable_prefix_caching: bool,
        max_chunk: int,
        max_ahead: int = 0,
    ) -> None:
        """max_chunk: tokens computed per step; max_ahead: positions behind those that a request may have blocks for"""
        self.block_size = capacity.block_size
        self._specs = groups
        self._max_chunk = max_chunk + max_ahead
        self._max_ahead = max_ahead
        self._no_new_blocks: NewBlocks = ((),) * len(groups)
        self._groups = tuple(
            self._group_cache(spec.window, BlockPool(num_blocks))
            for spec, num_blocks in zip(groups, capacity.num_blocks, strict=True)
        )
        self._hasher: Hasher = ChainHasher(self.block_size) if enable_prefix_caching else NoHasher()

    def _group_cache(self, window: int | None, pool: BlockPool) -> GroupCache:
        if window is None:
            return FullAttention(pool, self.block_size)
        return SlidingWindow(pool, self.block_size, window)

    def _most_blocks(self, spec: StateGroup, num_tokens: int) -> int:
        return spec.blocks_needed(num_tokens, self._max_chunk, self.block_size)

    def require_room(self, num_tokens: int) -> None:
        """Raises CapacityError unless one request of `num_tokens` fits when it is alone."""
        for spec, group in zip(self._specs, self._groups, strict=True):
            needed, usable = self._most_blocks(spec, num_tokens), group.pool.num_blocks - 1
            if needed > usable:
                most_blocks = partial(self._most_blocks, spec)
                longest = bisect_right(range(num_tokens), usable, key=most_blocks) - 1
                shorter = f"lower max_model_len to at most {longest}, or " if longest >= 2 else ""
                raise CapacityError(
                    f"one request of max_model_len={num_tokens} tokens needs {needed} blocks of the KV cache "
                    f"(group {spec.name!r}, {self.block_size} tokens per block), but only {usable} fit; {shorter}"
                    f"raise kv_cache_memory_bytes (a block takes {spec.bytes_per_token * self.block_size} bytes) or "
                    "num_blocks_override"
                )

    @property
    def num_free_blocks(self) -> tuple[int, ...]:
        return tuple(group.pool.num_free for group in self._groups)

    def find_hit(self, request: Request) -> PrefixHit:
        """The longest start of `request` that every group has; at least its last known token is left to compute."""
        self._hasher.extend(request)
        digests = request.block_hashes
        num_blocks = 0
        if not request.skip_prefix_cache_read:
            num_blocks = self._common_hit(digests, min(len(digests), (request.num_tokens - 1) // self.block_size))
        tables = tuple(self._hit_table(group, digests[:num_blocks]) for group in self._groups)
        return PrefixHit(num_blocks, num_blocks * self.block_size, tables)

    def _common_hit(self, digests: Sequence[bytes], limit: int) -> int:
        """A group may have to shrink what another one found, so go round until all agree."""
        while True:
            agreed = limit
            for group in self._groups:
                agreed = group.num_hit_blocks(digests, agreed)
            if agreed == limit:
                return limit
            limit = agreed

    def _hit_table(self, group: GroupCache, digests: Sequence[bytes]) -> tuple[int, ...]:
        first = group.first_seen_block(len(digests) * self.block_size)
        found = [group.pool.find(digest) for digest in digests[first:]]
        return (NULL_BLOCK,) * first + tuple(block for block in found if block is not None)

    def admit(self, request: Request, hit: PrefixHit, end: int) -> NewBlocks | None:
        """Give `request`, which holds nothing, the hit and new blocks up to token `end`. None: nothing was changed.

        All its known tokens must find room now, not only those up to `end`: a long prompt is not begun only to be
        thrown out again half way.
        """
        for spec, group, table in zip(self._specs, self._groups, hit.tables, strict=True):
            idle = sum(group.pool.is_free(block) for block in table)
            reused = sum(block != NULL_BLOCK for block in table)
            if self._most_blocks(spec, max(request.num_tokens, end)) - reused + idle > group.pool.num_free:
                return None
        for group, table in zip(self._groups, hit.tables, strict=True):
            for block in table:
                if block != NULL_BLOCK:
                    group.pool.hold(block)  # before allocating, which could otherwise take it away
        request.blocks = [list(table) for table in hit.tables]
        request.num_registered = hit.num_blocks
        self._append_new(request, self._num_new(request, end))
        return tuple(tuple(table) for table in request.blocks)

    def extend(self, request: Request, end: int) -> NewBlocks | None:
        """Make room up to token `end`; the next query is at `num_computed`. None: not enough free blocks."""
        for group, table in zip(self._groups, request.blocks, strict=True):
            self._release_unseen(group, table, request.num_computed)
        num_new = self._num_new(request, end)
        if num_new <= 0:  # most steps of most requests
            return self._no_new_blocks
        if any(group.pool.num_free < num_new for group in self._groups):
            return None
        return self._append_new(request, num_new)

    def _release_unseen(self, group: GroupCache, table: list[int], query: int) -> None:
        block = group.first_seen_block(query) - 1
        while block >= 0 and table[block] != NULL_BLOCK:
            group.pool.release(table[block])
            table[block] = NULL_BLOCK
            block -= 1

    def _num_new(self, request: Request, end: int) -> int:
        return ceil_div(end, self.block_size) - len(request.blocks[0])

    def _append_new(self, request: Request, num_new: int) -> NewBlocks:
        new_blocks = tuple(tuple(group.pool.allocate(num_new)) for group in self._groups)
        for table, new in zip(request.blocks, new_blocks, strict=True):
            table.extend(new)
        return new_blocks

    def register(self, request: Request) -> None:
        """Offer to the prefix cache the blocks whose tokens are all known and computed by launched steps."""
        self._hasher.extend(request)
        num_full = min(len(request.block_hashes), request.num_computed // self.block_size)
        for block in range(request.num_registered, num_full):
            for group, table in zip(self._groups, request.blocks, strict=True):
                if table[block] != NULL_BLOCK:
                    group.pool.register(request.block_hashes[block], table[block])
        request.num_registered = max(request.num_registered, num_full)

    def release(self, request: Request) -> None:
        """Give back all blocks, the last one first: the tail of a prompt is the least likely to be asked for again."""
        for group, table in zip(self._groups, request.blocks, strict=bool(request.blocks)):
            for block in reversed(table):
                if block != NULL_BLOCK:
                    group.pool.release(block)
        request.blocks = []

    def distrust(self, request: Request) -> None:
        """Take what `request` has computed out of the prefix cache; what it had found there at first may stay."""
        for digest in request.block_hashes[(request.num_cached or 0) // self.block_size :]:
            for group in self._groups:
                group.pool.forget(digest)

    def reset(self) -> bool:
        """Empty the prefix cache. False, and nothing changed, while any block is held."""
        if any(group.pool.num_used for group in self._groups):
            return False
        for group in self._groups:
            group.pool.forget_all()
        return True

    def check(self, requests: Iterable[Request]) -> None:
        """`requests`: all that can hold blocks. Raises AssertionError."""
        requests = list(requests)
        for index, (spec, group) in enumerate(zip(self._specs, self._groups, strict=True)):
            holders = Counter(block for request in requests for block in request.blocks[index])
            del holders[NULL_BLOCK]
            group.pool.check(holders)
            for request in requests:
                table = request.blocks[index]
                self._check_table(request, group, table)
                num_held = sum(block != NULL_BLOCK for block in table)
                most = self._most_blocks(spec, request.num_tokens_expected + self._max_ahead)
                assert num_held <= most, f"request {request.request_id!r} holds {num_held} blocks, more than {most}"

    def _check_table(self, request: Request, group: GroupCache, table: Sequence[int]) -> None:
        name = f"request {request.request_id!r}"
        least = ceil_div(request.num_computed, self.block_size)
        most = ceil_div(request.num_computed + self._max_ahead, self.block_size)
        assert least <= len(table) <= most, f"{name}: {len(table)} blocks for {request.num_computed} computed tokens"
        first = group.first_seen_block(request.num_computed)
        assert NULL_BLOCK not in table[first:], f"{name}: a visible block is missing in {table}, first visible {first}"
        for block, digest in zip(table, request.block_hashes, strict=False):
            carried = group.pool.digest_of(block)
            assert carried in (None, digest), f"{name}: block {block} carries the digest of other content"
