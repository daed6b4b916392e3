"""The blocks of one state group: which are free, who holds the others, which carry reusable content.

Block 0 is the null block: it stands for "nothing here" in block tables and is never handed out. A free block keeps
its content and its digest until it is handed out again, so a free block can still be a prefix cache hit.
"""

from __future__ import annotations

from collections.abc import Mapping

NULL_BLOCK = 0


class BlockPool:
    """`num_blocks` counts the null block. All operations cost O(1) per block.

    The free list is doubly linked through two arrays and anchored at the null block: the block after the anchor is
    handed out first. Blocks with a digest leave in the order of their last use; blocks without one leave before them.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self._next = [*range(1, num_blocks), NULL_BLOCK]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]
        self._num_holders = [0] * num_blocks
        self._digest_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - self.num_free

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` blocks, each held once; what they carried leaves the prefix cache."""
        assert count <= self.num_free, f"asked for {count} blocks, {self.num_free} are free"
        blocks = []
        for _ in range(count):
            block = self._next[NULL_BLOCK]
            self._unlink(block)
            self._drop_digest(block)
            self._num_holders[block] = 1
            blocks.append(block)
        return blocks

    def hold(self, block: int) -> None:
        """One more holder; a free block leaves the free list."""
        if self._num_holders[block] == 0:
            self._unlink(block)
        self._num_holders[block] += 1

    def release(self, block: int) -> None:
        """One holder less; without any the block is free."""
        assert self._num_holders[block] > 0, f"block {block} is released but nobody holds it"
        self._num_holders[block] -= 1
        if self._num_holders[block] == 0:
            # Content that can be hit again stays as long as possible; anything else is reused first.
            keeps = self._digest_of[block] is not None
            self._link(block, after=self._prev[NULL_BLOCK] if keeps else NULL_BLOCK)

    def is_free(self, block: int) -> bool:
        return block != NULL_BLOCK and self._num_holders[block] == 0

    def find(self, digest: bytes) -> int | None:
        """The block that carries the content named `digest`."""
        return self._block_of.get(digest)

    def digest_of(self, block: int) -> bytes | None:
        return self._digest_of[block]

    def register(self, digest: bytes, block: int) -> None:
        """Make the content of a held block findable. When another block already carries it, that one stays."""
        assert self._num_holders[block] > 0, f"block {block} is registered but nobody holds it"
        assert self._digest_of[block] is None, f"block {block} is registered twice"
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def forget(self, digest: bytes) -> None:
        """Take one content out of the prefix cache, if it is there; the block's holders are not affected."""
        block = self._block_of.get(digest)
        if block is None:
            return
        self._drop_digest(block)
        if self.is_free(block):
            self._unlink(block)
            self._link(block, after=NULL_BLOCK)

    def forget_all(self) -> None:
        self._block_of.clear()
        self._digest_of = [None] * self.num_blocks

    def _drop_digest(self, block: int) -> None:
        digest = self._digest_of[block]
        if digest is not None:
            del self._block_of[digest]
            self._digest_of[block] = None

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self.num_free -= 1

    def _link(self, block: int, after: int) -> None:
        following = self._next[after]
        self._next[after], self._prev[block] = block, after
        self._next[block], self._prev[following] = following, block
        self.num_free += 1

    def free_blocks(self) -> list[int]:
        """The free list in the order in which blocks are handed out."""
        blocks: list[int] = []
        block = self._next[NULL_BLOCK]
        while block != NULL_BLOCK:
            assert len(blocks) < self.num_blocks, "the free list runs in a circle"
            assert self._next[self._prev[block]] == block, f"the free list is broken at block {block}"
            blocks.append(block)
            block = self._next[block]
        return blocks

    def check(self, num_holders: Mapping[int, int]) -> None:
        """Compare with the holders counted from outside (`{block: count}`). Raises AssertionError."""
        for block in range(1, self.num_blocks):
            counted, expected = self._num_holders[block], num_holders.get(block, 0)
            assert counted == expected, f"block {block}: the pool counts {counted} holders, there are {expected}"
        assert not num_holders.get(NULL_BLOCK), "the null block is held"
        free = self.free_blocks()
        assert len(free) == self.num_free, f"{len(free)} blocks in the free list, num_free is {self.num_free}"
        unheld = {block for block in range(1, self.num_blocks) if self._num_holders[block] == 0}
        assert set(free) == unheld, f"free list and unheld blocks differ by {set(free) ^ unheld}"
        named = {digest: block for block, digest in enumerate(self._digest_of) if digest is not None}
        assert named == self._block_of, "digests of blocks and blocks of digests disagree"
        assert NULL_BLOCK not in self._block_of.values(), "the null block carries a digest"
