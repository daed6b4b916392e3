"""The kernels of a mixture of experts: every kind of weights, bits that depend on nothing but the token, routing."""

from __future__ import annotations

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from motet.ops import cpu
from motet.ops.cpu import library
from motet.ops.cpu.moe import route
from motet.ops.cpu.packing import PackedExperts
from motet.ops.gguf_types import DEQUANTIZERS
from motet.ops.quantized import QuantizedMatrix
from motet.ops.reference import linear as reference
from motet.ops.reference import moe as definition
from motet.ops.reference.quantized import random_blocks

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the kernels are not built")

OPS = cpu.CpuOps()
KINDS = [*(kind.name for kind in DEQUANTIZERS), "int8", "int4", "float32", "bfloat16", "float16"]
NUM_EXPERTS, TOP_K, WIDTH, INNER = 11, 3, 256, 256


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrices(kind: str, num_outputs: int, num_inputs: int) -> tuple[list[Tensor | QuantizedMatrix], str | None]:
    """One for each expert, and the scheme that quantises them."""
    if kind in GGMLQuantizationType.__members__:
        blocks = GGMLQuantizationType[kind]
        return [random_blocks(blocks, num_outputs, num_inputs, seed) for seed in range(NUM_EXPERTS)], None
    plain = [random(num_outputs, num_inputs, seed=seed) / num_inputs**0.5 for seed in range(NUM_EXPERTS)]
    if kind in ("int8", "int4"):
        return [*plain], kind
    return [one.to(getattr(torch, kind)) for one in plain], None


def packed(kind: str, num_outputs: int, num_inputs: int) -> PackedExperts:
    sources, scheme = matrices(kind, num_outputs, num_inputs)
    experts: PackedExperts = OPS.pack_experts([OPS.pack_linear(source, scheme=scheme) for source in sources])
    return experts


def scores(num_tokens: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (random(num_tokens, NUM_EXPERTS, seed=5) * 2).to(dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_experts_of_every_kind(kind: str) -> None:
    x, logits = random(20, WIDTH), scores(20)
    pairs = [(2 * INNER, WIDTH), (WIDTH, INNER)]
    plain = []
    for shape in pairs:
        sources, scheme = matrices(kind, *shape)
        plain.append([reference.pack_linear(source, scheme=scheme) for source in sources])
    expected = definition.moe(x, logits, plain[0], plain[1], TOP_K, True, "silu")
    got = OPS.moe(x, logits, *(packed(kind, *shape) for shape in pairs), TOP_K, True, "silu")
    # An activation's integer may be the neighbour, where what it rounds differs in the last place.
    atol = 2e-5 if kind in ("float32", "bfloat16", "float16") else 4e-3 * float(expected.abs().max())
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=atol)


def test_gate_and_up_of_two_kinds() -> None:
    gates, ups = matrices("Q4_K", INNER, WIDTH)[0], matrices("Q6_K", INNER, WIDTH)[0]
    gate_up = OPS.pack_experts([OPS.pack_linear(*pair) for pair in zip(gates, ups, strict=True)])
    down, x, logits = packed("bfloat16", WIDTH, INNER), random(5, WIDTH), scores(5)
    assert len(gate_up.addresses) == 2
    weights, ids = definition.route(logits, TOP_K, True)
    expected = torch.zeros_like(x)
    for token in range(5):
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            both = OPS.linear(x[token : token + 1], gate_up.experts[expert])
            hidden = OPS.linear(OPS.activation_mul(both, "gelu"), down.experts[expert])
            expected[token] += weight * hidden[0]
    got = OPS.moe(x, logits, gate_up, down, TOP_K, True, "gelu")
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("isa", library.supported_isas())
@pytest.mark.parametrize(
    ("kind", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("Q4_K", torch.float16)]
)
def test_bits_depend_on_the_token_alone(
    isa: str, kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_loaded", library._kernels.Kernels(isa))
    weights = packed(kind, 2 * INNER, WIDTH), packed(kind, WIDTH, INNER)
    x, logits = random(40, WIDTH).to(dtype), scores(40, dtype)
    together, before = OPS.moe(x, logits, *weights, TOP_K, False, "silu"), torch.get_num_threads()
    assert together.isfinite().all()
    try:
        for num_threads, count in ((1, 1), (2, 7), (3, 40)):
            torch.set_num_threads(num_threads)
            starts = range(0, 40, count)
            parts = [OPS.moe(x[i : i + count], logits[i : i + count], *weights, TOP_K, False, "silu") for i in starts]
            assert torch.equal(torch.cat(parts), together)
    finally:
        torch.set_num_threads(before)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert torch.equal(OPS.moe(x[order], logits[order], *weights, TOP_K, False, "silu"), together[order])


@pytest.mark.parametrize("num_experts", [1, 16, 17, 130])
@pytest.mark.parametrize("renormalize", [True, False])
def test_routes_are_sorted_by_expert(num_experts: int, renormalize: bool) -> None:
    """Scores in steps of a half: many are equal, and the lower expert wins."""
    top_k = min(num_experts, 4)
    logits = (random(50, num_experts) * 2).round() / 2
    routes = route(OPS.target, logits, top_k, renormalize)
    weights, ids = definition.route(logits, top_k, renormalize)
    ids, order = ids.sort(dim=1)
    assert torch.equal(routes.experts.view(-1)[routes.places].long(), ids)
    assert torch.equal(routes.tokens.view(-1)[routes.places], torch.arange(50).unsqueeze(1).expand(50, top_k))
    assert torch.equal(routes.experts.view(-1), routes.experts.view(-1).sort().values)
    assert torch.equal(routes.places.view(-1).sort().values, torch.arange(50 * top_k))
    torch.testing.assert_close(routes.weights, weights.gather(1, order), rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_token_stays_alone(value: float) -> None:
    weights = packed("float32", 2 * INNER, WIDTH), packed("float32", WIDTH, INNER)
    x, logits = random(4, WIDTH), scores(4)
    clean = OPS.moe(x, logits, *weights, TOP_K, True, "silu")
    logits[2, 3] = value
    got = OPS.moe(x, logits, *weights, TOP_K, True, "silu")
    assert got[2].isnan().all()
    assert torch.equal(got[[0, 1, 3]], clean[[0, 1, 3]])


def test_experts_that_are_never_chosen() -> None:
    logits = scores(6)
    logits[:, 4:] = -float("inf")
    routes = route(OPS.target, logits, TOP_K, True)
    assert int(routes.experts.max()) < 4
    torch.testing.assert_close(routes.weights.sum(1), torch.ones(6))


def test_no_tokens() -> None:
    weights = packed("float32", 2 * INNER, WIDTH), packed("float32", WIDTH, INNER)
    assert OPS.moe(random(0, WIDTH), scores(0), *weights, TOP_K, True, "silu").shape == (0, WIDTH)


def test_what_does_not_fit_is_refused() -> None:
    gate_up, down = packed("float32", 2 * INNER, WIDTH), packed("float32", WIDTH, INNER)
    x, logits = random(2, WIDTH), scores(2)
    with pytest.raises(ValueError, match=r"x must be float32, bfloat16 or float16 \[T, 256\].*\[2, 255\]"):
        OPS.moe(x[:, 1:], logits, gate_up, down, TOP_K, True, "silu")
    with pytest.raises(ValueError, match=r"router_logits must be floats \[T, 11\], got \[2, 10\]"):
        OPS.moe(x, logits[:, 1:], gate_up, down, TOP_K, True, "silu")
    with pytest.raises(ValueError, match="11 experts of 256 outputs of gate and up need as many with half as many"):
        OPS.moe(x, logits, down, down, TOP_K, True, "silu")
    with pytest.raises(ValueError, match="top_k must be between 1 and the 11 experts, got 12"):
        OPS.moe(x, logits, gate_up, down, 12, True, "silu")
    with pytest.raises(ValueError, match="matrices of one shape and one kind"):
        OPS.pack_experts([gate_up.experts[0], down.experts[0]])
