from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.core.errors import CapacityError
from motet.core.params import RowSampling
from motet.core.request import Request
from motet.core.state import Capacity
from motet.sched.cache import StateCache
from tests.sched.fake_runner import full_group, window_group

BS = 2


def cache_of(*windows: int | None, num_blocks: int = 20, caching: bool = True) -> StateCache:
    groups = tuple(full_group() if window is None else window_group(window) for window in windows)
    return StateCache(groups, Capacity(BS, (num_blocks,) * len(groups)), caching, max_chunk=64)


def request_of(prompt: list[int], **fields) -> Request:
    return Request("r", list(prompt), RowSampling(), max_tokens=8, **fields)


def run_prompt(cache: StateCache, prompt: list[int], **fields) -> Request:
    """A request whose whole prompt is computed and cached."""
    request = request_of(prompt, **fields)
    hit = cache.find_hit(request)
    assert cache.admit(request, hit, len(prompt)) is not None
    request.num_cached = hit.num_tokens
    request.num_computed = len(prompt)
    cache.register(request)
    return request


def hit_tables(cache: StateCache, prompt: list[int]) -> tuple[tuple[int, ...], ...]:
    return cache.find_hit(request_of(prompt)).tables


def test_hits_are_whole_blocks_and_leave_one_token():
    cache = cache_of(None)
    first = run_prompt(cache, [1, 2, 3, 4, 5])
    for prompt, expected in [
        ([1, 2, 3, 4, 5], 4),
        ([1, 2, 3, 4], 2),  # never the last token: something must be computed to get logits
        ([1, 2, 3, 9, 5], 2),
        ([1, 9, 3, 4, 5], 0),
        ([1, 2], 0),
        ([1], 0),
    ]:
        hit = cache.find_hit(request_of(prompt))
        assert hit.num_tokens == expected
        assert hit.tables == (tuple(first.blocks[0][: expected // BS]),)


def test_a_hit_is_shared_and_survives_its_first_owner():
    cache = cache_of(None)
    first = run_prompt(cache, [1, 2, 3, 4, 5])
    second = run_prompt(cache, [1, 2, 3, 4, 6])
    assert second.blocks[0][:2] == first.blocks[0][:2]
    assert second.blocks[0][2] != first.blocks[0][2]
    cache.check([first, second])
    cache.release(first)
    cache.check([second])
    cache.release(second)
    assert cache.num_free_blocks == (19,)
    assert cache.find_hit(request_of([1, 2, 3, 4, 9])).num_tokens == 4


def test_skipping_reads_still_writes():
    cache = cache_of(None)
    run_prompt(cache, [1, 2, 3, 4, 5], skip_prefix_cache_read=True)
    assert cache.find_hit(request_of([1, 2, 3, 4, 5], skip_prefix_cache_read=True)).num_tokens == 0
    assert cache.find_hit(request_of([1, 2, 3, 4, 5])).num_tokens == 4


def test_salts_separate():
    cache = cache_of(None)
    run_prompt(cache, [1, 2, 3, 4, 5], cache_salt="a")
    assert cache.find_hit(request_of([1, 2, 3, 4, 5])).num_tokens == 0
    assert cache.find_hit(request_of([1, 2, 3, 4, 5], cache_salt="b")).num_tokens == 0
    assert cache.find_hit(request_of([1, 2, 3, 4, 5], cache_salt="a")).num_tokens == 4


def test_caching_off_finds_nothing_and_hashes_nothing():
    cache = cache_of(None, caching=False)
    request = run_prompt(cache, [1, 2, 3, 4, 5])
    assert request.block_hashes == []
    assert cache.find_hit(request_of([1, 2, 3, 4, 5])).num_tokens == 0


def test_tail_blocks_are_evicted_first():
    cache = cache_of(None, num_blocks=5)
    cache.release(run_prompt(cache, [1, 2, 3, 4, 5, 6, 7, 8]))
    for num_other_tokens, expected in [(1, 6), (3, 4), (5, 2)]:
        other = request_of([9] * num_other_tokens, skip_prefix_cache_read=True)
        assert cache.admit(other, cache.find_hit(other), num_other_tokens) is not None
        assert cache.find_hit(request_of([1, 2, 3, 4, 5, 6, 7, 8, 9])).num_tokens == expected
        cache.release(other)


def test_admission_never_evicts_its_own_hit():
    cache = cache_of(None, num_blocks=5)
    cache.release(run_prompt(cache, [1, 2, 3, 4]))
    cache.release(run_prompt(cache, [5, 6, 7, 8]))
    request = request_of([1, 2, 3, 4, 9, 9, 9, 9])
    hit = cache.find_hit(request)
    table = cache.admit(request, hit, 8)
    assert table is not None
    assert table[0][:2] == hit.tables[0]
    assert len(set(table[0])) == 4


def test_admission_is_all_or_nothing_over_groups():
    cache = StateCache((full_group(), window_group(3)), Capacity(BS, (20, 5)), True, max_chunk=64)
    big = run_prompt(cache, [1, 2, 3, 4, 5])
    before = cache.num_free_blocks
    request = request_of([9, 9, 9, 9, 9])
    assert before == (16, 1)
    assert cache.admit(request, cache.find_hit(request), 5) is None
    assert cache.num_free_blocks == before
    assert request.blocks == []
    cache.check([big])


def test_a_long_prompt_is_not_begun_without_room_for_all_of_it():
    cache = cache_of(None, num_blocks=6)
    run_prompt(cache, [1, 2, 3, 4])
    request = request_of([9] * 7)
    assert cache.admit(request, cache.find_hit(request), 2) is None
    request = request_of([9] * 6)
    assert cache.admit(request, cache.find_hit(request), 2) == ((3,),)


def test_extension_is_all_or_nothing_over_groups():
    cache = StateCache((full_group(), window_group(9)), Capacity(BS, (20, 4)), True, max_chunk=4)
    request = run_prompt(cache, [1, 2, 3, 4, 5, 6])
    before = cache.num_free_blocks
    assert before == (16, 0)
    assert cache.extend(request, 7) is None
    assert cache.num_free_blocks == before
    cache.check([request])


def test_blocks_before_the_window_are_freed_and_keep_their_content():
    cache = cache_of(None, 3)
    request = run_prompt(cache, [1, 2, 3, 4, 5, 6])
    full, window = (list(table) for table in request.blocks)
    request.output_token_ids.append(7)
    # Query 6 sees keys 4, 5, 6: blocks 0 and 1 of the window group go.
    assert cache.extend(request, 7) == ((4,), (4,))
    assert request.blocks == [[*full, 4], [0, 0, window[2], 4]]
    request.num_computed = 7
    cache.check([request])
    assert cache.num_free_blocks == (15, 17)
    assert hit_tables(cache, [1, 2, 3, 4, 9]) == ((full[0], full[1]), (0, window[1]))


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (1, (0, 0, 0)),  # a query sees itself only
        (2, (0, 0, 3)),
        (3, (0, 0, 3)),
        (4, (0, 2, 3)),
        (5, (0, 2, 3)),
        (6, (1, 2, 3)),
    ],
)
def test_a_window_hit_holds_only_the_last_window(window, expected):
    cache = cache_of(window)
    run_prompt(cache, [1, 2, 3, 4, 5, 6])
    assert hit_tables(cache, [1, 2, 3, 4, 5, 6, 7]) == (expected,)


def test_a_window_hit_needs_only_the_last_window():
    cache = cache_of(3)
    request = run_prompt(cache, [1, 2, 3, 4, 5, 6])
    for index in (0, 1):
        cache._groups[0].pool.forget(request.block_hashes[index])
    assert hit_tables(cache, [1, 2, 3, 4, 5, 6, 7]) == ((0, 0, 3),)
    assert hit_tables(cache, [1, 2, 3, 4, 9]) == ((),)


def test_groups_shrink_to_a_common_hit():
    cache = cache_of(None, 3, 5)
    request = run_prompt(cache, list(range(1, 13)))
    full, small, large = cache._groups
    digests = request.block_hashes
    full.pool.forget(digests[5])  # full: 5 blocks
    small.pool.forget(digests[4])  # window 3: the last 2 keys, so 4 blocks
    large.pool.forget(digests[2])  # window 5: the last 4 keys are in blocks 2 and 3, so 2 blocks
    small.pool.forget(digests[1])  # which window 3 cannot take in the second round: 1 block
    hit = cache.find_hit(request_of([*range(1, 13), 13]))
    assert hit.num_tokens == 2
    assert hit.tables == ((1,), (1,), (1,))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([None, 1, 2, 3, 4, 5, 7]), min_size=1, max_size=3),
    st.integers(1, 8),
    st.data(),
)
def test_the_common_hit_is_the_longest_valid_one(windows, num_blocks, data):
    """Compared with trying every length from the longest down."""
    cache = cache_of(*windows)
    request = run_prompt(cache, list(range(num_blocks * BS)))
    held = []
    for group in cache._groups:
        lost = data.draw(st.sets(st.integers(0, num_blocks - 1)))
        held.append([index not in lost for index in range(num_blocks)])
        for index in lost:
            group.pool.forget(request.block_hashes[index])

    def is_valid(length: int) -> bool:
        return all(
            is_held[key // BS]
            for window, is_held in zip(windows, held, strict=True)
            for key in range(0 if window is None else max(0, length * BS - window + 1), length * BS)
        )

    longest = next(length for length in range(num_blocks, -1, -1) if is_valid(length))
    assert cache.find_hit(request_of([*range(num_blocks * BS), 99])).num_blocks == longest


def test_generated_tokens_are_cached_when_known_and_computed():
    cache = cache_of(None)
    request = run_prompt(cache, [1, 2, 3])
    request.output_token_ids.append(4)
    cache.register(request)  # the block's last token is known, not computed
    assert cache.find_hit(request_of([1, 2, 3, 4, 9])).num_tokens == 2
    assert cache.extend(request, 4) == ((),)
    request.num_computed = 4
    cache.register(request)
    assert cache.find_hit(request_of([1, 2, 3, 4, 9])).num_tokens == 4
    assert cache.extend(request, 6) is not None
    request.num_computed = 6
    cache.register(request)  # computed by a launched step, not known
    assert cache.find_hit(request_of([1, 2, 3, 4, 9, 9, 9])).num_tokens == 4


def test_distrust_takes_out_what_the_request_has_computed():
    cache = cache_of(None, 3)
    good = run_prompt(cache, [1, 2, 3])
    bad = run_prompt(cache, [1, 2, 3, 4, 5, 6, 7])
    cache.distrust(bad)
    cache.check([good, bad])
    assert cache.find_hit(request_of([1, 2, 3, 4, 5, 6, 7])).num_tokens == 2


def test_reset_needs_all_blocks_back():
    cache = cache_of(None, 3)
    request = run_prompt(cache, [1, 2, 3, 4, 5])
    assert not cache.reset()
    assert cache.find_hit(request_of([1, 2, 3, 4, 5])).num_tokens == 4
    cache.release(request)
    assert cache.reset()
    assert cache.find_hit(request_of([1, 2, 3, 4, 5])).num_tokens == 0


def test_room_for_one_request_of_the_longest_length():
    cache_of(None, num_blocks=11).require_room(20)
    with pytest.raises(CapacityError) as caught:
        cache_of(None, num_blocks=11).require_room(21)
    message = str(caught.value)
    for part in ("max_model_len=21", "11 blocks", "'full'", "only 10 fit", "at most 20", "num_blocks_override"):
        assert part in message


def test_a_window_group_needs_room_for_window_and_chunk_only():
    # Window 5 and chunk 6: at most 10 tokens at once, which touch 6 blocks.
    groups, capacity = (full_group(), window_group(5)), Capacity(BS, (101, 7))
    StateCache(groups, capacity, True, max_chunk=6).require_room(200)
    with pytest.raises(CapacityError, match=r"'window5'.*only 5 fit.*at most 10"):
        StateCache(groups, Capacity(BS, (101, 6)), True, max_chunk=6).require_room(200)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda request: request.blocks[0].append(7), "holders"),
        (lambda request: request.blocks[0].__setitem__(0, 0), "holders"),
        (lambda request: setattr(request, "num_computed", 9), "3 blocks for 9 computed tokens"),
        (lambda request: request.block_hashes.reverse(), "digest of other content"),
    ],
)
def test_check_finds_damage(damage, message):
    cache = cache_of(None)
    request = run_prompt(cache, [1, 2, 3, 4, 5])
    damage(request)
    with pytest.raises(AssertionError, match=message):
        cache.check([request])
