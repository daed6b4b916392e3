from __future__ import annotations

import numpy as np
import pytest

from motet.spec.ngram import continuation


@pytest.mark.parametrize(
    ("tokens", "limit", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 3, (3, 4, 1)),
        ([1, 2, 3, 4, 1, 2], 1, (3,)),
        ([1, 2, 3, 4, 1, 2], 0, ()),
        ([1, 2, 3, 4, 5, 6], 3, ()),  # nothing like it before
        ([9, 2, 3, 4, 1, 2], 3, ()),  # one token in common is too few
        ([1, 2, 7, 7, 1, 2, 8, 8, 1, 2], 2, (8, 8)),  # the last of equals
        ([5, 1, 2, 7, 7, 9, 1, 2, 8, 8, 5, 1, 2], 2, (7, 7)),  # the longer match, though it is older
        ([1, 2, 7, 6, 5, 1, 2, 8, 1, 2], 4, (7, 6, 5, 1)),  # of equals, one with enough behind it
        ([4, 4, 4, 4], 3, (4, 4, 4)),
        ([4], 3, ()),
        ([1, 2, 3, 1, 2, 3, 1, 2, 3], 9, (1, 2, 3) * 3),
    ],
)
def test_what_followed_the_longest_earlier_match(tokens: list[int], limit: int, expected: tuple[int, ...]) -> None:
    assert continuation(np.array(tokens, np.int32), 2, 4, limit) == expected
