"""Linear kernels: a row alone has the bits it has in a batch, on every instruction set and any number of threads."""

from __future__ import annotations

import pytest
import torch

from motet.ops import cpu
from motet.ops.cpu import library
from motet.ops.reference.linear import DTYPES, random_linear

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the kernels are not built")

OPS = cpu.CpuOps()


@pytest.fixture(params=library.supported_isas())
def every_isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    import motet._kernels

    monkeypatch.setattr(library, "_loaded", motet._kernels.Kernels(request.param))
    return str(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 70, 33), (13, 192, 576), (7, 1, 5)])
def test_rows_do_not_depend_on_their_mates(every_isa: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    x, weight, bias, residual = random_linear(shape, dtype)
    packed = OPS.pack_linear(weight)
    together = OPS.linear(x, packed, bias, residual)
    for count in (1, 2, 3, 5, 6, 7):
        parts = [OPS.linear(x[i : i + count], packed, bias, residual[i : i + count]) for i in range(0, len(x), count)]
        assert torch.equal(torch.cat(parts), together)


@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_float64(every_isa: str, dtype: torch.dtype) -> None:
    x, weight, bias, _ = random_linear((13, 192, 575), dtype)
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(OPS.linear_f32(x, OPS.pack_linear(weight), bias).double(), expected, rtol=0, atol=1e-5)


def test_threads_do_not_change_a_bit() -> None:
    x, weight, bias, residual = random_linear((64, 640, 576), torch.bfloat16)
    packed, before = OPS.pack_linear(weight), torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(OPS.linear(x, packed, bias, residual))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_reads_the_packed_matrix(every_isa: str, dtype: torch.dtype) -> None:
    table = random_linear((1, 130, 33), dtype)[1]
    ids = torch.tensor([129, 0, 64, 63, 64])
    assert torch.equal(OPS.embedding(ids, OPS.pack_linear(table)), table[ids])
    scaled = OPS.embedding(ids, OPS.pack_linear(table), 2.7)
    assert torch.equal(scaled, table[ids] * torch.tensor(2.7, dtype=dtype))


def test_activations_do_not_depend_on_the_place(every_isa: str) -> None:
    values = torch.randn(7, 37, generator=torch.Generator().manual_seed(0)) * 5
    for function in (
        lambda x: OPS.activation(x, "silu"),
        lambda x: OPS.activation(x, "gelu_tanh"),
        lambda x: OPS.soft_cap(x, 3.0),
    ):
        whole = function(values)
        assert torch.equal(torch.cat([function(values[:, i : i + 1]) for i in range(37)], dim=1), whole)
    torch.testing.assert_close(OPS.soft_cap(values, 3.0), torch.tanh(values / 3.0) * 3.0, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_weights_of_another_type(every_isa: str, dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    x, weight, bias, residual = random_linear((13, 192, 575), torch.float32)
    x, weight, bias = x.to(dtype), weight.to(weight_dtype), bias.to(dtype)
    packed = OPS.pack_linear(weight)
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(OPS.linear_f32(x, packed, bias).double(), expected, rtol=0, atol=1e-5)
    together = OPS.linear(x, packed, bias, residual.to(dtype))
    alone = [OPS.linear(x[i : i + 1], packed, bias, residual[i : i + 1].to(dtype)) for i in range(13)]
    assert torch.equal(torch.cat(alone), together)
    assert torch.equal(OPS.embedding(torch.tensor([5, 191]), packed, dtype=dtype), weight[[5, 191]].to(dtype))


def test_wrong_inputs_are_refused() -> None:
    x, weight, bias, residual = random_linear((2, 3, 4), torch.float32)
    packed = OPS.pack_linear(weight)
    with pytest.raises(ValueError, match=r"x must be float32, bfloat16 or float16 \[T, 4\]"):
        OPS.linear(x.double(), packed)
    with pytest.raises(ValueError, match="x must be"):
        OPS.linear(x[:, :3], packed)
    with pytest.raises(ValueError, match="bias must be"):
        OPS.linear(x, packed, bias.bfloat16())
    with pytest.raises(ValueError, match="residual must be"):
        OPS.linear(x, packed, bias, residual[:1])
    with pytest.raises(ValueError, match="weight must be a matrix"):
        OPS.pack_linear(weight.int())
