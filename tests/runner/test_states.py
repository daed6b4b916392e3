"""The tensors behind the specs."""

from __future__ import annotations

import pytest
import torch

from motet.core.state import Capacity, Paged, StateSpec, group_states
from motet.tensors.states import StateStore


def test_every_layer_has_its_own_zeroed_tensors_in_its_groups_size() -> None:
    specs: dict[str, StateSpec] = {
        "a": Paged(2, 8, "float32"),
        "b": Paged(1, 4, "bfloat16", window=6),
        "c": Paged(2, 8, "float32"),
    }
    store = StateStore(specs, group_states(specs, 64), Capacity(4, (5, 3)))
    a, b, c = (store.paged(name) for name in "abc")
    assert (tuple(a.k.shape), a.k.dtype, a.group) == ((20, 2, 8), torch.float32, 0)
    assert (tuple(b.v.shape), b.v.dtype, b.group) == ((12, 1, 4), torch.bfloat16, 1)
    assert store.num_bytes == 2 * 2 * 20 * 16 * 4 + 2 * 12 * 4 * 2
    for state in (a, b, c):
        assert not state.k.any()
        assert not state.v.any()
    a.k.fill_(1.0)
    assert not a.v.any()
    assert not c.k.any()


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_caches_of_one_byte_have_scales(dtype: str) -> None:
    specs: dict[str, StateSpec] = {"a": Paged(3, 8, dtype), "b": Paged(3, 8, "float32", window=5)}
    groups = group_states(specs, 64)
    store = StateStore(specs, groups, Capacity(4, (5, 2)))
    state = store.paged("a")
    assert state.k.dtype is getattr(torch, dtype)
    assert state.k_scale is not None
    assert state.v_scale is not None
    for scale in (state.k_scale, state.v_scale):
        assert (tuple(scale.shape), scale.dtype) == ((20, 3), torch.float32)
        assert not scale.any()
    state.k_scale.fill_(1.0)
    assert not state.v_scale.any()
    assert store.paged("b").k_scale is None
    assert store.num_bytes == 20 * groups[0].bytes_per_token + 8 * groups[1].bytes_per_token
