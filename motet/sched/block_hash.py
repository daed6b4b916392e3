"""Names for the content of KV blocks: 128-bit BLAKE2b digests, chained from block to block.

A digest covers everything that the KV of a block depends on: all tokens from the start of the request up to the end
of the block, and the extras (what else went in: the client's cache salt, and the adapter). Equal digests mean equal
content, across requests and across processes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from motet.core.request import Request

DIGEST_BYTES = 16
ROOT = bytes(DIGEST_BYTES)  # the parent of a request's first block
MAX_TOKEN_ID = 2**63 - 1  # token ids enter a digest as 64-bit integers

Extras = tuple[bytes, ...]
ExtrasOf = Callable[[Request, int], Extras]  # (request, block index) -> what else this block depends on


def block_digest(parent: bytes, token_ids: Sequence[int], extras: Extras = ()) -> bytes:
    """The name of a block with `token_ids` that follows the block `parent`; every part is length-prefixed."""
    digest = hashlib.blake2b(parent, digest_size=DIGEST_BYTES)
    digest.update(struct.pack(f"<{1 + len(token_ids)}q", len(token_ids), *token_ids))
    for extra in extras:
        digest.update(struct.pack("<q", len(extra)) + extra)
    return digest.digest()


def request_extras(request: Request, block: int) -> Extras:
    """Requests with different cache salts or adapters share nothing: the chain hands the first block's extras on."""
    if block > 0:
        return ()
    salt = () if request.cache_salt is None else (request.cache_salt.encode(),)
    return salt if request.adapter is None else (*salt, b"adapter", request.adapter.key.encode())


class Hasher(Protocol):
    def extend(self, request: Request) -> None:
        """Append the digests of the blocks that are full of known tokens and have none yet."""


class ChainHasher:
    def __init__(self, block_size: int, extras_of: ExtrasOf = request_extras) -> None:
        self._block_size = block_size
        self._extras_of = extras_of

    def extend(self, request: Request) -> None:
        digests = request.block_hashes
        for block in range(len(digests), request.num_tokens // self._block_size):
            start = block * self._block_size
            parent = digests[-1] if digests else ROOT
            token_ids = request.token_ids_between(start, start + self._block_size)
            digests.append(block_digest(parent, token_ids, self._extras_of(request, block)))


class NoHasher:
    """Prefix caching is off: blocks have no names, so nothing is ever found or registered."""

    def extend(self, request: Request) -> None:
        pass
