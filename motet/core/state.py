"""What a model keeps between steps: specs per layer, grouped into pools of blocks."""

from __future__ import annotations

import math

import msgspec

from motet.core.errors import UnsupportedError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1}
SCALED_DTYPES = ("int8", "float8_e4m3fn")  # of K and V: each token and head has a scale, in float32


class Paged(msgspec.Struct, frozen=True, tag=True):
    """K and V of one layer in blocks. `window` is the number of keys a query sees, itself included (None: all).

    dtype: a key of DTYPE_BYTES
    """

    num_kv_heads: int
    head_size: int
    dtype: str
    window: int | None = None

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_kv_heads * (self.head_size * DTYPE_BYTES[self.dtype] + (4 if self.is_scaled else 0))

    @property
    def is_scaled(self) -> bool:
        return self.dtype in SCALED_DTYPES


class Recurrent(msgspec.Struct, frozen=True, tag=True):
    """One fixed-size tensor per request (streaming convolutions, state-space models)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


StateSpec = Paged | Recurrent


class StateGroup(msgspec.Struct, frozen=True):
    """Layers that share one block table: all paged layers with the same window."""

    window: int | None
    layers: tuple[str, ...]
    bytes_per_token: int

    @property
    def name(self) -> str:
        return "full" if self.window is None else f"window{self.window}"

    def blocks_needed(self, num_tokens: int, chunk: int, block_size: int) -> int:
        """Most blocks that a request of `num_tokens` holds at once when up to `chunk` tokens are computed per step."""
        whole = -(-num_tokens // block_size)
        if self.window is None:
            return whole
        # A window may begin and end inside a block, hence the extra one.
        return min(whole, -(-(self.window - 1 + chunk) // block_size) + 1)


def group_states(specs: dict[str, StateSpec], max_model_len: int) -> tuple[StateGroup, ...]:
    """Group layers by window, full attention first. A window that covers `max_model_len` counts as full attention."""
    members: dict[int | None, list[tuple[str, Paged]]] = {}
    for name, spec in specs.items():
        if not isinstance(spec, Paged):
            raise UnsupportedError(f"layer {name!r} keeps recurrent state, which no pool serves yet")
        window = None if spec.window is None or spec.window >= max_model_len else spec.window
        members.setdefault(window, []).append((name, spec))
    order = sorted(members, key=lambda window: (window is not None, window or 0))
    return tuple(
        StateGroup(
            window=window,
            layers=tuple(name for name, _ in members[window]),
            bytes_per_token=sum(spec.bytes_per_token for _, spec in members[window]),
        )
        for window in order
    )


class Capacity(msgspec.Struct, frozen=True):
    """What the runner found room for. `num_blocks[g]` counts the blocks of group g, the null block 0 included."""

    block_size: int
    num_blocks: tuple[int, ...]
