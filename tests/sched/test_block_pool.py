from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.sched.block_pool import BlockPool


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(5)
    assert pool.num_free == 4
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    with pytest.raises(AssertionError, match="asked for 1 blocks, 0 are free"):
        pool.allocate(1)


def test_a_block_is_free_when_its_last_holder_leaves():
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.hold(block)
    pool.release(block)
    assert not pool.is_free(block)
    assert pool.num_used == 1
    pool.release(block)
    assert pool.is_free(block)
    with pytest.raises(AssertionError, match="nobody holds it"):
        pool.release(block)


def test_least_recently_freed_content_goes_first_and_empty_blocks_before_it():
    pool = BlockPool(5)
    blocks = pool.allocate(4)
    for block in blocks[:3]:
        pool.register(digest(block), block)
    for block in (blocks[1], blocks[0], blocks[3], blocks[2]):
        pool.release(block)
    assert pool.free_blocks() == [blocks[3], blocks[1], blocks[0], blocks[2]]
    pool.hold(blocks[1])  # a hit moves the block to the end
    pool.release(blocks[1])
    assert pool.allocate(4) == [blocks[3], blocks[0], blocks[2], blocks[1]]


def test_content_is_found_until_its_block_is_handed_out_again():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.register(digest(7), block)
    pool.release(block)
    assert pool.find(digest(7)) == block
    pool.allocate(1)
    assert pool.find(digest(7)) is None


def test_the_first_block_with_a_content_keeps_it():
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    pool.register(digest(1), first)
    pool.register(digest(1), second)
    assert pool.find(digest(1)) == first
    assert pool.digest_of(second) is None
    pool.check(Counter([first, second]))


def test_a_forgotten_free_block_is_reused_first():
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.register(digest(block), block)
        pool.release(block)
    pool.forget(digest(blocks[2]))
    pool.forget(digest(99))
    assert pool.free_blocks() == [blocks[2], blocks[0], blocks[1]]
    pool.forget_all()
    assert pool.find(digest(blocks[0])) is None
    pool.check({})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda pool: pool._next.__setitem__(2, 1), "free list"),
        (lambda pool: pool._num_holders.__setitem__(2, 1), "counts 1 holders, there are 0"),
        (lambda pool: pool._digest_of.__setitem__(2, digest(5)), "disagree"),
        (lambda pool: setattr(pool, "num_free", 2), "num_free is 2"),
    ],
)
def test_check_finds_damage(damage, message):
    pool = BlockPool(5)
    pool.check({})
    damage(pool)
    with pytest.raises(AssertionError, match=message):
        pool.check({})


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_like_a_list_and_two_dicts(data):
    """A naive pool: a free list searched and changed in place."""
    pool = BlockPool(6)
    free, holders, content = [1, 2, 3, 4, 5], Counter(), {}
    for _ in range(data.draw(st.integers(0, 40))):
        action = data.draw(st.sampled_from(["allocate", "hold", "release", "register", "forget"]))
        block, name = data.draw(st.integers(1, 5)), digest(data.draw(st.integers(0, 4)))
        if action == "allocate" and free:
            content.pop(free[0], None)
            holders[free[0]] = 1
            assert pool.allocate(1) == [free.pop(0)]
        elif action == "hold" and (holders[block] or block in content):
            if not holders[block]:
                free.remove(block)
            holders[block] += 1
            pool.hold(block)
        elif action == "release" and holders[block]:
            holders[block] -= 1
            if not holders[block]:
                free.insert(len(free) if block in content else 0, block)
            pool.release(block)
        elif action == "register" and holders[block] and block not in content:
            if name not in content.values():
                content[block] = name
            pool.register(name, block)
        elif action == "forget":
            for held in [held for held, named in content.items() if named == name]:
                del content[held]
                if held in free:
                    free.remove(held)
                    free.insert(0, held)
            pool.forget(name)
        pool.check(holders)
        assert pool.free_blocks() == free
        assert {held: pool.digest_of(held) for held in range(1, 6) if pool.digest_of(held)} == content
