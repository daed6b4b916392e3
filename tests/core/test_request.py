"""A request's own arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.core.params import RowSampling
from motet.core.request import Request

IDS = st.lists(st.integers(0, 99), min_size=1, max_size=8)


@given(prompt=IDS, output=st.lists(st.integers(0, 99), max_size=8), data=st.data())
def test_token_ids_between_is_a_slice_of_all_tokens(prompt: list[int], output: list[int], data: st.DataObject) -> None:
    request = Request("r", prompt, RowSampling(), max_tokens=9, output_token_ids=output)
    assert request.token_ids() == prompt + output
    start = data.draw(st.integers(0, request.num_tokens))
    end = data.draw(st.integers(start, request.num_tokens))
    assert request.token_ids_between(start, end) == (prompt + output)[start:end]
