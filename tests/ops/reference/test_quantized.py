"""The definitions of quantised linear layers, on numbers worked out by hand and against plain products."""

from __future__ import annotations

import pytest
import torch
from gguf.constants import GGMLQuantizationType

from motet.ops.quantized import QuantizedMatrix, int4_group
from motet.ops.reference import linear
from motet.ops.reference.quantized import quantize_int4, quantize_int8, quantize_rows, random_blocks


def test_rows_are_quantised_by_group_to_nearest_even() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, -2.5, 0.0, 0.0, 0.0, 0.0, 2.54, -1.27, 0.02]])
    q, scale = quantize_rows(x, 4)
    assert q.tolist() == [[127, 0, 2, -2, 0, 0, 0, 0, 127, -64, 1]]
    torch.testing.assert_close(scale, torch.tensor([[1.0, 0.0, 0.02]]))


def test_what_is_not_finite_makes_its_group_nan() -> None:
    q, scale = quantize_rows(torch.tensor([[1.0, torch.inf, 2.0, 0.0, torch.nan, 0.0]]), 2)
    assert scale.isnan().tolist() == [[True, False, True]]
    assert q.tolist() == [[0, 0, 127, 0, 0, 0]]


def test_no_rows() -> None:
    """A step of which no token's score is wanted."""
    packed = linear.pack_linear(torch.ones(4, 32), scheme="int8")
    assert linear.logits(torch.empty(0, 32), packed).shape == (0, 4)


def test_weights_keep_their_extremes() -> None:
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    error = (quantize_int8(weight) - weight).abs().amax(1)
    assert (error <= weight.abs().amax(1) / 127 * 0.5001).all()
    groups, values = weight.view(6, 2, 32), quantize_int4(weight, 32).view(6, 2, 32)
    steps = (groups.amax(2) - groups.amin(2)) / 15
    assert ((values - groups).abs().amax(2) <= steps * 0.51 + 2e-3).all()  # and what float16 loses
    assert torch.equal(quantize_int4(torch.full((1, 32), 0.25), 32), torch.full((1, 32), 0.25))


@pytest.mark.parametrize(("num_inputs", "group"), [(384, 128), (192, 64), (96, 32), (100, None)])
def test_the_largest_group_that_divides_the_row(num_inputs: int, group: int | None) -> None:
    assert int4_group(num_inputs) == group


def test_products_are_near_those_of_the_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(9, 256, generator=generator), torch.randn(20, 256, generator=generator) / 16
    blocks = random_blocks(GGMLQuantizationType.Q8_0, 20, 256)
    packed = linear.pack_linear(weight, blocks, scheme="int8")
    exact = torch.cat([x @ weight.T, x @ blocks.dequantize(torch.float32).T], dim=1)
    assert (linear.linear(x, packed) - exact).abs().max() < 0.03  # of numbers of about 1
    assert torch.equal(linear.logits(x, packed), linear.linear(x, packed))
    assert torch.equal(linear.linear(x, linear.pack_linear(weight)), x @ weight.T)


def test_tables_give_their_dequantised_rows() -> None:
    blocks, ids = random_blocks(GGMLQuantizationType.Q4_K, 30, 256), torch.tensor([29, 0, 29])
    rows = linear.embedding(ids, linear.pack_linear(blocks), dtype=torch.bfloat16)
    assert torch.equal(rows, blocks.dequantize(torch.bfloat16)[ids])


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="type Q2_K"):
        linear.pack_linear(QuantizedMatrix(GGMLQuantizationType.Q2_K, torch.zeros(2, 84, dtype=torch.uint8), 256))
