from __future__ import annotations

import subprocess
import sys

from motet.core.params import RowSampling
from motet.core.request import Request
from motet.sched.block_hash import DIGEST_BYTES, ROOT, ChainHasher, NoHasher, block_digest


def request_of(prompt: list[int], **fields) -> Request:
    return Request("r", prompt, RowSampling(), max_tokens=8, **fields)


def digests_of(prompt: list[int], block_size: int = 2, **fields) -> list[bytes]:
    request = request_of(prompt, **fields)
    ChainHasher(block_size).extend(request)
    return request.block_hashes


def test_digests_are_128_bits_and_equal_in_every_process():
    here = block_digest(ROOT, [1, 2**40, 2**63 - 1], (b"salt",))
    assert len(here) == DIGEST_BYTES == 16
    code = "from motet.sched.block_hash import *; print(block_digest(ROOT, [1, 2**40, 2**63 - 1], (b'salt',)).hex())"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here.hex()


def test_sched_never_imports_torch():
    code = "import sys, motet.sched.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parent_tokens_and_extras_all_count():
    names = [
        block_digest(ROOT, [1, 2]),
        block_digest(ROOT, [2, 1]),
        block_digest(ROOT, [1, 2, 0]),
        block_digest(block_digest(ROOT, [1, 2]), [1, 2]),
        block_digest(ROOT, [1, 2], (b"",)),
        block_digest(ROOT, [1, 2], (b"ab",)),
        block_digest(ROOT, [1, 2], (b"a", b"b")),
        block_digest(ROOT, [1, 2], (b"b", b"a")),
    ]
    assert len(set(names)) == len(names)


def test_only_full_blocks_of_known_tokens_have_a_digest():
    request = request_of([1, 2, 3])
    hasher = ChainHasher(2)
    hasher.extend(request)
    assert len(request.block_hashes) == 1
    request.output_token_ids += [4, 5]
    hasher.extend(request)
    assert request.block_hashes == digests_of([1, 2, 3, 4, 5])


def test_prompt_and_output_tokens_are_the_same_content():
    request = request_of([1, 2, 3])
    request.output_token_ids += [4, 5, 6, 7]
    ChainHasher(2).extend(request)
    assert request.block_hashes == digests_of([1, 2, 3, 4, 5, 6, 7]) == digests_of([1, 2, 3, 4, 5, 6])


def test_an_early_difference_changes_all_later_digests():
    same, other = digests_of([1, 2, 3, 4, 5, 6]), digests_of([1, 2, 3, 0, 5, 6])
    assert [a == b for a, b in zip(same, other, strict=True)] == [True, False, False]


def test_a_salt_changes_every_digest():
    chains = [digests_of([1, 2, 3, 4], cache_salt=salt) for salt in (None, "", "a", "b")]
    assert len({digest for chain in chains for digest in chain}) == 8


def test_other_extras_can_name_any_block():
    def extras_of(request: Request, block: int) -> tuple[bytes, ...]:
        return (b"image",) if block == 1 else ()

    request = request_of([1, 2, 3, 4, 5, 6])
    ChainHasher(2, extras_of).extend(request)
    plain = digests_of([1, 2, 3, 4, 5, 6])
    assert [a == b for a, b in zip(request.block_hashes, plain, strict=True)] == [True, False, False]


def test_without_caching_nothing_is_hashed():
    request = request_of([1, 2, 3, 4])
    NoHasher().extend(request)
    assert request.block_hashes == []
