from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from motet.sampling.noise import as_int64, exponentials, gumbels, log, stream_keys, uniforms

INT64 = st.integers(-(2**63), 2**63 - 1)
M64 = 2**64 - 1


def mix(z: int, shifts: tuple[int, int, int], factors: tuple[int, int]) -> int:
    z = (z ^ (z >> shifts[0])) * factors[0] & M64
    z = (z ^ (z >> shifts[1])) * factors[1] & M64
    return z ^ (z >> shifts[2])


def plain_mix(z: int) -> int:
    return mix(z, (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def plain_key(seed: int, position: int) -> int:
    return plain_mix(plain_mix(seed & M64) ^ mix(position, (33, 33, 33), (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)))


def plain_uniform(key: int, lane: int) -> float:
    return ((plain_mix((key + (lane + 1) * 0x9E3779B97F4A7C15) & M64) >> 11) | 1) * 2.0**-53


def plain_log(x: float) -> float:
    mantissa, exponent = math.frexp(x)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = mantissa * 2.0, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = 1.0 / 21
    for k in range(9, -1, -1):
        series = series * (s * s) + 1.0 / (2 * k + 1)
    return exponent * math.log(2.0) + (2.0 * s) * series


def test_lanes_are_the_outputs_of_splitmix64():
    # the generator's published outputs for seed 1234567
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    u = uniforms(torch.tensor([1234567]), torch.arange(5))
    assert u.tolist() == [((bits >> 11) | 1) * 2.0**-53 for bits in expected]


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**40), st.integers(0, 300_000))
def test_equals_the_definition_in_plain_python(seed: int, position: int, lane: int):
    key = stream_keys(torch.tensor([as_int64(seed)]), torch.tensor([position]))
    assert key.item() & M64 == plain_key(seed, position)
    u = uniforms(key, torch.tensor([lane]))
    assert u.item() == plain_uniform(plain_key(seed, position), lane)
    assert gumbels(u).item() == -plain_log(-plain_log(u.item()))


@given(INT64, INT64)
def test_uniforms_stay_inside_the_open_interval(key: int, lane: int):
    u = uniforms(torch.tensor([key]), torch.tensor([lane])).item()
    assert 0 < u < 1
    assert (u * 2**53) % 2 == 1


def test_the_ends_of_the_range_are_finite():
    ends = torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    assert gumbels(ends).tolist() == pytest.approx([-math.log(53 * math.log(2)), 53 * math.log(2)], rel=1e-15)


@given(st.floats(1e-300, 1e300))
def test_log_is_accurate(x: float):
    assert log(torch.tensor([x], dtype=torch.float64)).item() == pytest.approx(math.log(x), rel=1e-15, abs=1e-300)


def test_bits_do_not_depend_on_the_batch():
    keys, lanes = stream_keys(torch.arange(7), torch.arange(7) * 1000), torch.arange(1003)
    everything = gumbels(uniforms(keys[:, None], lanes))
    for n in range(7):
        assert torch.equal(everything[n], gumbels(uniforms(keys[n], lanes)))
        assert torch.equal(everything[n, 5::9], gumbels(uniforms(keys[n], lanes[5::9])))
    assert everything[3, 77].item() == gumbels(uniforms(keys[3], lanes[77])).item()


def test_distributions():
    lanes = torch.arange(1000)
    by_lane = uniforms(stream_keys(torch.tensor([5]), torch.tensor([3])), torch.arange(100_000))
    by_position = uniforms(stream_keys(torch.tensor([5]), torch.arange(100_000)), torch.tensor([17]))
    by_seed = uniforms(stream_keys(torch.arange(100_000), torch.tensor([3])), torch.tensor([17]))
    for u in (by_lane, by_position, by_seed):
        assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3
        assert stats.kstest(exponentials(u).numpy(), "expon").pvalue > 1e-3
        assert stats.kstest(gumbels(u).numpy(), "gumbel_r").pvalue > 1e-3
    # neighbours and swapped pairs share nothing
    corner = uniforms(stream_keys(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]))[:, None], lanes)
    assert (torch.corrcoef(corner) - torch.eye(4)).abs().max() < 0.15
