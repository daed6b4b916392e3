"""State groups: which layers share a block table, and how many blocks a request needs."""

from __future__ import annotations

import pytest

from motet.core.errors import UnsupportedError
from motet.core.state import Paged, Recurrent, StateGroup, group_states


def paged(window: int | None = None, num_kv_heads: int = 2, dtype: str = "float32") -> Paged:
    return Paged(num_kv_heads=num_kv_heads, head_size=8, dtype=dtype, window=window)


def test_layers_of_one_window_share_a_group_and_full_attention_comes_first() -> None:
    specs = {"a": paged(16), "b": paged(), "c": paged(8), "d": paged(16), "e": paged()}
    groups = group_states(specs, max_model_len=64)
    assert [(group.name, group.layers) for group in groups] == [
        ("full", ("b", "e")),
        ("window8", ("c",)),
        ("window16", ("a", "d")),
    ]


@pytest.mark.parametrize(("max_model_len", "names"), [(17, ["window16"]), (16, ["full"]), (9, ["full"])])
def test_a_window_that_covers_the_context_is_full_attention(max_model_len: int, names: list[str]) -> None:
    assert [group.name for group in group_states({"a": paged(16)}, max_model_len)] == names


def test_bytes_per_token_add_up_over_layers_and_dtypes() -> None:
    (group,) = group_states({"a": paged(), "b": paged(num_kv_heads=1, dtype="bfloat16")}, 64)
    assert group.bytes_per_token == 2 * 2 * 8 * 4 + 2 * 1 * 8 * 2


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_one_byte_and_a_scale_for_each_head_make_room_for_nearly_twice_as_many_tokens(dtype: str) -> None:
    for head_size, factor in ((64, 1.88), (128, 1.93), (256, 1.96)):
        small, half = (Paged(3, head_size, name).bytes_per_token for name in (dtype, "bfloat16"))
        assert small == 2 * 3 * (head_size + 4)
        assert half / small > factor


def test_recurrent_state_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="'conv'"):
        group_states({"conv": Recurrent((4, 8), "float32")}, 64)
    assert Recurrent((4, 8), "bfloat16").num_bytes == 64


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("chunk", [1, 3, 40])
@pytest.mark.parametrize("window", [1, 2, 7, 12])
def test_no_step_of_a_windowed_request_needs_more_blocks_than_said(window: int, chunk: int, block_size: int) -> None:
    group = StateGroup(window=window, layers=("a",), bytes_per_token=1)
    num_tokens = 50
    most = 0
    for start in range(num_tokens):
        stop = min(start + chunk, num_tokens)
        first_seen = max(0, start - window + 1) // block_size
        most = max(most, -(-stop // block_size) - first_seen)
    needed = group.blocks_needed(num_tokens, chunk, block_size)
    assert most <= needed <= -(-num_tokens // block_size)
