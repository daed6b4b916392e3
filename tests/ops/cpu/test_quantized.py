"""Quantised linear kernels: dequantised weights are GGUF's, and a row's bits depend on nothing but the row."""

from __future__ import annotations

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from motet.ops import cpu
from motet.ops.cpu import library
from motet.ops.cpu.linear import split_records
from motet.ops.cpu.packing import PackedLinear
from motet.ops.gguf_types import DEQUANTIZERS
from motet.ops.quantized import QuantizedMatrix, int4_group
from motet.ops.reference import linear as reference
from motet.ops.reference.quantized import quantize_int4, quantize_int8, quantize_rows, random_blocks

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the kernels are not built")

KINDS = [*(kind.name for kind in DEQUANTIZERS), "int8", "int4"]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(params=library.supported_isas())
def every_isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    import motet._kernels

    monkeypatch.setattr(library, "_loaded", motet._kernels.Kernels(request.param))
    return str(request.param)


@pytest.fixture
def ops() -> cpu.CpuOps:
    return cpu.CpuOps()


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def matrix(kind: str, num_outputs: int, num_inputs: int) -> tuple[Tensor | QuantizedMatrix, str | None]:
    """What `pack_linear` takes, and the scheme."""
    if kind in ("int8", "int4"):
        return random(num_outputs, num_inputs, seed=1) / num_inputs**0.5, kind
    return random_blocks(GGMLQuantizationType[kind], num_outputs, num_inputs), None


def pack(ops: cpu.CpuOps, kind: str, num_outputs: int, num_inputs: int) -> PackedLinear:
    source, scheme = matrix(kind, num_outputs, num_inputs)
    packed: PackedLinear = ops.pack_linear(source, scheme=scheme)
    return packed


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_their_mates(every_isa: str, ops: cpu.CpuOps, kind: str) -> None:
    packed = pack(ops, kind, 70, 512)
    x, bias, residual = random(40, 512), random(70, seed=2), random(40, 70, seed=3)
    together = ops.linear(x, packed, bias, residual)
    for count in (1, 2, 3, 4, 5, 6, 7, 13):
        parts = [ops.linear(x[i : i + count], packed, bias, residual[i : i + count]) for i in range(0, 40, count)]
        assert torch.equal(torch.cat(parts), together)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_a_bit(ops: cpu.CpuOps, kind: str) -> None:
    packed, before = pack(ops, kind, 200, 1536), torch.get_num_threads()
    x = random(40, 1536, dtype=torch.bfloat16)
    results = [ops.linear(x[:7], packed)]
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(ops.linear(x, packed))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[1][:7], results[0])
    assert all(torch.equal(result, results[1]) for result in results[2:])


@pytest.mark.parametrize("kind", KINDS)
def test_instruction_sets_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch, ops: cpu.CpuOps, kind: str) -> None:
    import motet._kernels

    x = random(9, 768)
    x[0] *= 1e4
    results, bytes_ = [], []
    for isa in library.supported_isas():
        monkeypatch.setattr(library, "_loaded", motet._kernels.Kernels(isa))
        packed = pack(ops, kind, 45, 768)
        bytes_.append(packed.parts[0].data)
        results.append(ops.linear(x, packed))
    assert all(torch.equal(result, results[0]) for result in results)
    assert all(torch.equal(data, bytes_[0]) for data in bytes_)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_outputs", [1, 33, 64])
def test_agrees_with_the_definition(every_isa: str, ops: cpu.CpuOps, kind: str, num_outputs: int) -> None:
    source, scheme = matrix(kind, num_outputs, 512)
    x = random(5, 512)
    expected = reference.linear(x, reference.pack_linear(source, scheme=scheme))
    torch.testing.assert_close(ops.linear(x, ops.pack_linear(source, scheme=scheme)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_inputs", [1, 3, 33, 577, 2050])
def test_int8_takes_any_number_of_inputs(every_isa: str, ops: cpu.CpuOps, num_inputs: int) -> None:
    weight, x = random(35, num_inputs, seed=1) / num_inputs**0.5, random(5, num_inputs)
    expected = reference.linear(x, reference.pack_linear(weight, scheme="int8"))
    packed = ops.pack_linear(weight, scheme="int8")
    torch.testing.assert_close(ops.linear(x, packed), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(ops.embedding(torch.arange(35), packed), quantize_int8(weight))


def test_extreme_integers_do_not_saturate(every_isa: str, ops: cpu.CpuOps) -> None:
    weight = torch.full((4, 4096), 127.0) * torch.tensor([1.0, -1.0, 1.0, -1.0]).unsqueeze(1)
    x = torch.full((2, 4096), 127.0)
    x[1] = -127.0
    out = ops.linear(x, ops.pack_linear(weight, scheme="int8"))
    assert torch.equal(out, x @ weight.T)


@pytest.mark.parametrize("name", [kind.name for kind in DEQUANTIZERS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_rows_are_those_of_the_gguf_package(
    every_isa: str, ops: cpu.CpuOps, name: str, dtype: torch.dtype
) -> None:
    blocks = random_blocks(GGMLQuantizationType[name], 75, 512)
    expected = torch.from_numpy(dequantize(blocks.blocks.numpy(), blocks.kind)).to(dtype)
    ids = torch.tensor([74, 0, 31, 32, 33, 15, 16, 63, 64, 64])
    packed = ops.pack_linear(blocks)
    assert torch.equal(ops.embedding(ids, packed, dtype=dtype), expected[ids])
    scaled = ops.embedding(ids, packed, 2.7, dtype=dtype)
    assert torch.equal(scaled, expected[ids] * torch.tensor(2.7, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_inputs", [32, 64, 96, 384])
def test_int4_values_are_those_of_the_definition(
    every_isa: str, ops: cpu.CpuOps, dtype: torch.dtype, num_inputs: int
) -> None:
    weight = random(40, num_inputs, dtype=dtype)
    weight[3] = 0.5  # d is 0
    weight[4] = 0
    group = int4_group(num_inputs)
    assert group in (32, 64, 128)
    got = ops.embedding(torch.arange(40), ops.pack_linear(weight, scheme="int4"))
    assert torch.equal(got, quantize_int4(weight, group))


@pytest.mark.parametrize("kind", KINDS)
def test_packed_bytes_are_those_of_the_blocks(ops: cpu.CpuOps, kind: str) -> None:
    source, scheme = matrix(kind, 192, 768)
    if isinstance(source, QuantizedMatrix):
        num_bytes: float = source.blocks.nbytes
    else:
        num_bytes = source.numel() * {"int8": 8, "int4": 4 + 32 / 128}[kind] / 8
    assert num_bytes <= ops.pack_linear(source, scheme=scheme).num_bytes <= 1.05 * num_bytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_several_kinds_stand_side_by_side(every_isa: str, ops: cpu.CpuOps, dtype: torch.dtype) -> None:
    types = GGMLQuantizationType
    parts: list[Tensor | QuantizedMatrix] = [
        random_blocks(types.Q4_K, 64, 256),
        random_blocks(types.Q4_K, 33, 256),  # one part with the first and the next
        random_blocks(types.Q4_K, 20, 256),
        random_blocks(types.Q6_K, 40, 256),
        *(random(19, 256, seed=4, dtype=weight_dtype) / 16 for weight_dtype in DTYPES),
        random_blocks(types.Q8_0, 7, 256),
    ]
    packed = ops.pack_linear(*parts)
    assert [part.num_outputs for part in packed.parts] == [117, 40, 19, 19, 19, 7]
    x = random(8, 256, dtype=dtype)
    bias, residual = random(221, seed=5, dtype=dtype), random(8, 221, seed=6, dtype=dtype)
    got = ops.linear(x, packed, bias, residual)
    begin = 0
    for part in parts:
        end = begin + (part.num_outputs if isinstance(part, QuantizedMatrix) else len(part))
        columns = slice(begin, end)
        alone = ops.linear(x, ops.pack_linear(part), bias[columns].clone(), residual[:, columns].contiguous())
        assert torch.equal(got[:, columns], alone)
        begin = end
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    expected = reference.linear(x, reference.pack_linear(*parts), bias, residual)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        ops.logits(x, packed, bias), reference.logits(x, reference.pack_linear(*parts), bias), rtol=1e-5, atol=1e-5
    )


def test_merged_tensors_equal_their_parts(ops: cpu.CpuOps) -> None:
    first, second, x = random(96, 64), random(50, 64, seed=1), random(3, 64)
    for scheme in (None, "int8", "int4"):
        for parts in ((first, second), (second, first)):
            packed = ops.pack_linear(*parts, scheme=scheme)
            assert len(packed.parts) == 1
            alone = [ops.linear(x, ops.pack_linear(part, scheme=scheme)) for part in parts]
            assert torch.equal(ops.linear(x, packed), torch.cat(alone, dim=1))


def test_plain_types_run_from_their_own_bits(ops: cpu.CpuOps) -> None:
    weight = random(40, 64).half()
    blocks = QuantizedMatrix(GGMLQuantizationType.F16, weight.view(torch.uint8), 64)
    packed = ops.pack_linear(blocks)
    assert packed.parts[0].data.dtype is torch.float16
    x = random(3, 64, dtype=torch.bfloat16)
    expected = (x.double() @ weight.double().T).bfloat16()
    torch.testing.assert_close(ops.linear(x, packed), expected, rtol=2**-7, atol=2**-7)
    assert torch.equal(ops.embedding(torch.tensor([39, 1]), packed, dtype=torch.bfloat16), weight[[39, 1]].bfloat16())


@pytest.mark.parametrize("group", [32, 64])
def test_activations_that_are_not_finite_poison_their_row_alone(every_isa: str, ops: cpu.CpuOps, group: int) -> None:
    x = random(5, 64)
    x[1, 3], x[2, 40], x[3, 0] = torch.nan, torch.inf, 1e-38
    integers, scales = split_records(ops.quantize_rows(x, group), 64, group)
    expected = quantize_rows(x, group)
    finite = expected[1].isfinite()
    assert torch.equal(scales.isfinite(), finite)
    assert torch.equal(scales[finite], expected[1][finite])
    assert torch.equal(integers[[0, 3, 4]], expected[0][[0, 3, 4]])
    packed = pack(ops, "Q4_0", 40, 64)
    out = ops.linear(x, packed)
    assert out[1:3].isnan().all()
    assert out[[0, 3, 4]].isfinite().all()
    assert torch.equal(ops.linear(x[4:], packed), out[4:])
    assert torch.equal(ops.linear(torch.zeros(1, 64), packed), torch.zeros(1, 40))


def test_what_does_not_fit_is_refused(ops: cpu.CpuOps) -> None:
    blocks = random_blocks(GGMLQuantizationType.Q4_0, 4, 64)
    packed, x = ops.pack_linear(blocks, random(3, 64)), random(2, 64)
    with pytest.raises(ValueError, match="the same inputs"):
        ops.pack_linear(blocks, random(3, 32))
    with pytest.raises(ValueError, match="scheme must be one of int8, int4"):
        ops.pack_linear(blocks, scheme="int3")
    with pytest.raises(ValueError, match="no kernel for weights of type Q2_K"):
        ops.pack_linear(QuantizedMatrix(GGMLQuantizationType.Q2_K, torch.zeros(2, 84, dtype=torch.uint8), 256))
    with pytest.raises(ValueError, match="at most 65536 inputs"):
        ops.pack_linear(torch.zeros(1, 65537), scheme="int8")
    with pytest.raises(ValueError, match="of one kind"):
        ops.embedding(torch.tensor([0]), packed)
    with pytest.raises(ValueError, match=r"bias must be \[7\]"):
        ops.linear(x, packed, random(6))
    with pytest.raises(ValueError, match=r"residual must be \[T, 7\]"):
        ops.linear(x, packed, None, random(1, 7))
