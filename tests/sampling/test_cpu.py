"""The sampler on the kernels against the definition in torch: equal tokens, logprobs and errors, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from motet.core.params import RowSampling
from motet.ops import cpu
from motet.ops.cpu import library
from motet.ops.cpu.sampling import describe, draw
from motet.ops.cpu.target import Target
from motet.ops.reference.greedy import greedy
from motet.sampling.cpu import CpuSampler
from motet.sampling.draw import draw as draw_by_definition
from motet.sampling.noise import gumbels, stream_keys, uniforms
from motet.sampling.sampler import Sampler
from motet.sampling.steps import top_p
from tests.sampling.rows import Row, random_logits, rows, view_of

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="installed without the C++ kernels")
FAST = CpuSampler(Target())
DEFINITION = Sampler(greedy)
V = 131  # two blocks of 64, and three


@pytest.fixture(params=library.supported_isas())
def every_isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    import motet._kernels

    monkeypatch.setattr(library, "_loaded", motet._kernels.Kernels(request.param))
    return str(request.param)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def assert_equal(logits: Tensor, batch: list[Row]) -> None:
    view = view_of(batch, logits.shape[1])
    before = logits.clone()
    found, expected = FAST.sample(logits, view), DEFINITION.sample(logits, view)
    assert found == expected
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))


def spoil(logits: Tensor, kind: str) -> Tensor:
    """Rows of one kind of trouble beside plain ones."""
    some = logits[::2]
    if kind == "equals":
        logits = logits.round()
    elif kind == "all equal":
        some[:] = 2.5
    elif kind == "signed zeros":
        some[:] = 0.0
        some[:, ::3] *= -1.0
    elif kind == "forbidden":
        some[:, 3:] = -torch.inf
    elif kind == "hopeless":
        some[:] = -torch.inf
    elif kind == "nan":
        some[:, -1] = torch.nan
    elif kind == "infinite":
        some[:, 0] = torch.inf
    elif kind == "huge":
        some *= 1e38
    elif kind == "far":
        some += 3e7
    return logits


KINDS = [
    "plain", "equals", "all equal", "signed zeros", "forbidden", "hopeless", "nan", "infinite", "huge", "far",
]  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([1, 7, 64, V]).flatmap(lambda v: st.tuples(st.just(v), st.lists(rows(v), min_size=1, max_size=6))),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.3, 3.0, 12.0]),
    st.sampled_from(KINDS),
)
def test_equals_the_definition(crowd: tuple[int, list[Row]], seed: int, scale: float, kind: str):
    vocab_size, batch = crowd
    assert_equal(spoil(random_logits(seed, len(batch), vocab_size, scale), kind), batch)


def varied(vocab_size: int) -> list[Row]:
    """Every combination of some values of each filter."""
    filters = [
        (temperature, min_p, top_k, p)
        for temperature in (0.5, 1.0)
        for min_p in (0.0, 0.01)
        for top_k in (0, 1, 50, 2000)
        for p in (1.0, 0.999, 0.9, 1e-3)
    ]
    return [
        Row(RowSampling(temperature=t, min_p=m, top_k=k, top_p=p, seed=n, num_logprobs=[None, 0, 5, 900][n % 4]))
        for n, (t, m, k, p) in enumerate(filters)
    ]


@pytest.mark.parametrize("scale", [0.2, 3.0])
@pytest.mark.parametrize("vocab_size", [7, 5003])
def test_equals_the_definition_with_every_instruction_set(every_isa: str, vocab_size: int, scale: float):
    batch = varied(vocab_size)
    assert_equal(random_logits(3, len(batch), vocab_size, scale).bfloat16().float(), batch)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_definition_over_a_whole_vocabulary(kind: str):
    batch = varied(50257)[5::9]
    assert_equal(spoil(random_logits(4, len(batch), 50257, 2.5), kind), batch)


def test_rows_do_not_depend_on_mates_or_threads(threads: int):
    batch = varied(3001)
    logits = random_logits(5, len(batch), 3001, 1.0)
    together = FAST.sample(logits, view_of(batch, 3001))
    for n in range(0, len(batch), 5):
        alone = FAST.sample(logits[n : n + 1], view_of([batch[n]], 3001))
        assert (alone.token_ids[0], alone.logprobs[0]) == (together.token_ids[n], together.logprobs[n])
    assert together == DEFINITION.sample(logits, view_of(batch, 3001))


def draw_plain(scores: Tensor, keys: Tensor, p: float = 1.0) -> Tensor:
    full = torch.ones(len(scores))
    none, wide = torch.full_like(full, -torch.inf), torch.full((len(scores),), scores.shape[1])
    rows = torch.arange(len(scores))
    return draw(Target(), scores, rows, full, none, wide, torch.full_like(full, p, dtype=torch.float64), keys)


def test_the_noise_has_the_definitions_bits(every_isa: str):
    """Of a million lanes, pairs whose noise is nearly equal: a float32 score can fill the gap to within a unit in the
    last place of float64, so that which lane wins hangs on the last bit of either noise."""
    width = 65536
    keys = stream_keys(torch.zeros(16, dtype=torch.int64), torch.arange(16))
    noise, lanes = gumbels(uniforms(keys[:, None], torch.arange(width))).sort(dim=1)
    key, place = divmod((noise[:, 1:] - noise[:, :-1]).flatten().argsort()[:64].numpy(), width - 1)
    low, high = lanes[key, place], lanes[key, place + 1]
    gap = (noise[key, place + 1] - noise[key, place]).float()
    for nudge in (0.0, torch.inf, -torch.inf):
        scores = torch.full((64, width), -torch.inf)
        scores[torch.arange(64), low] = 0.0
        scores[torch.arange(64), high] = -(gap if nudge == 0.0 else torch.nextafter(gap, torch.tensor(nudge)))
        drawn = draw_plain(scores, keys[key])
        assert torch.equal(drawn, draw_by_definition(scores, keys[key]))
        assert ((drawn == low) | (drawn == high)).all()


def test_no_pruning_changes_a_draw():
    """Flat rows, where any lane can win, and steep ones, against noise for every lane."""
    keys = stream_keys(torch.arange(64), torch.zeros(64, dtype=torch.int64))
    for scale in (0.0, 0.1, 1.0, 10.0, 60.0):
        scores = random_logits(6, 64, 4099, scale)
        relative = scores.double() - scores.double().amax(dim=1, keepdim=True)
        everything = relative + gumbels(uniforms(keys[:, None], torch.arange(4099)))
        assert torch.equal(draw_plain(scores, keys), everything.argmax(dim=1))


@pytest.mark.parametrize("scale", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("p", [1e-6, 0.3, 0.9, 0.999999])
def test_the_nucleus_ends_at_the_same_token(scale: float, p: float):
    """Every token that can still win somewhere is drawn from thousands of keys, so the borders must be equal."""
    row = random_logits(7, 1, 90, scale).bfloat16().float()
    kept = top_p(row, torch.tensor([p], dtype=torch.float64))[0]
    scores, keys = (
        row.expand(4000, 90).contiguous(),
        stream_keys(torch.zeros(4000, dtype=torch.int64), torch.arange(4000)),
    )
    drawn = draw_plain(scores, keys, p)
    assert torch.equal(drawn, draw_by_definition(kept.expand(4000, 90), keys))
    if scale < 1.0:
        assert torch.equal(drawn.unique(), kept.isfinite().nonzero().squeeze(1))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_hopeless_row_is_described_as_by_the_definition(bad: float):
    logits = random_logits(8, 3, 200)
    logits[1, 130] = bad
    logits[2, 5:] = -torch.inf
    token_ids, counts = torch.tensor([4, 4, 100]), [3, 3, 200]
    found = FAST.token_logprobs(logits, token_ids, counts)
    expected = DEFINITION.token_logprobs(logits, token_ids, counts)
    for one, other in zip(found, expected):
        assert (one.token_ids, one.rank) == (other.token_ids, other.rank)
        assert np.array_equal(one.logprobs, other.logprobs, equal_nan=True)


def test_what_is_refused():
    scores, ids = torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="float32"):
        draw_plain(scores.double(), ids)
    with pytest.raises(ValueError, match="one for each row"):
        draw_plain(scores, ids[:1])
    with pytest.raises(ValueError, match="width"):
        describe(Target(), scores, ids, ids, 6)
    with pytest.raises(ValueError, match="int64"):
        describe(Target(), scores, ids.int(), ids, 1)
    assert FAST.token_logprobs(scores[:0], ids[:0], []) == []
