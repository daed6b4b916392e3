from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from motet.sampling.ranking import top_ids

VALUES = st.sampled_from([-torch.inf, -3.5, -1e-30, -0.0, 0.0, 1e-30, 0.25, 7.0, 3e38])


@given(st.lists(VALUES, min_size=1, max_size=40), st.data())
def test_larger_first_then_lower_id(values: list[float], data: st.DataObject):
    k = data.draw(st.integers(1, len(values)))
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert top_ids(torch.tensor([values]), k).tolist() == [expected]


def test_many_equals_in_a_wide_row():
    values = torch.randint(0, 5, (3, 30_000), generator=torch.Generator().manual_seed(0)).float()
    expected = values.sort(dim=1, descending=True, stable=True).indices
    for k in (1, 20, 5000, 30_000):
        assert torch.equal(top_ids(values, k), expected[:, :k])
