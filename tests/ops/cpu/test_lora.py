"""The adapter kernels: bits that depend on nothing but the row, on every instruction set and number of threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from motet import _kernels
from motet.ops import cpu
from motet.ops.cpu import library
from motet.ops.reference.lora import random_lora

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the kernels are not built")

OPS = cpu.CpuOps()
SLOTS = (1, -1, 0, 2, 1, 1, 0, -1, 2, *(1,) * 9)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def case(dtype: torch.dtype) -> tuple[Tensor, Tensor, object, Tensor, Tensor]:
    return random_lora(101, (70, 16, 129), 20, SLOTS, dtype)


@pytest.mark.parametrize("isa", library.supported_isas())
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_alone_has_the_same_bits(dtype: torch.dtype, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", _kernels.Kernels(isa))
    y, x, weights, tokens, slots = case(dtype)
    together = OPS.lora(y.clone(), x, weights, tokens, slots)
    for token, slot in zip(tokens.tolist(), slots.tolist(), strict=True):
        alone = OPS.lora(
            y[token : token + 1].clone(),
            x[token : token + 1].clone(),
            weights,
            torch.zeros(1, dtype=torch.int64),
            torch.tensor([slot], dtype=torch.int32),
        )
        assert torch.equal(alone[0], together[token])
        assert not torch.equal(alone[0], y[token])
    untouched = [token for token, slot in enumerate(SLOTS) if slot < 0]
    assert torch.equal(together[untouched], y[untouched])


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_do_not_change_a_bit(dtype: torch.dtype) -> None:
    y, x, *others = case(dtype)
    before, found = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            found.append(OPS.lora(y.clone(), x, *others))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_slot_can_be_filled_again() -> None:
    """What a larger adapter left behind does not show, not even a NaN."""
    y, x, weights, tokens, slots = random_lora(40, (24,), 32, (0, 0), torch.float32)
    a, b = torch.randn(3, 40), torch.randn(24, 3)
    fresh = random_lora(40, (24,), 32, (0, 0), torch.float32)[2]
    fresh.put(0, 0, a, b, 2.0)
    weights.put(0, 0, torch.full((32, 40), torch.nan), torch.full((24, 32), torch.nan), 1.0)
    weights.put(0, 0, a, b, 2.0)
    found = OPS.lora(y.clone(), x, weights, tokens, slots)
    assert torch.equal(found, OPS.lora(y.clone(), x, fresh, tokens, slots))
    torch.testing.assert_close(found, y + 2 * (x @ a.T) @ b.T)
    weights.clear(0)
    assert torch.equal(OPS.lora(y.clone(), x, weights, tokens, slots), y)


def test_other_arguments_are_refused() -> None:
    y, x, weights, tokens, slots = case(torch.float32)
    for bad in (
        (y.bfloat16(), x, weights, tokens, slots),
        (y[:, :-1], x, weights, tokens, slots),
        (y, x[:, :-1].contiguous(), weights, tokens, slots),
        (y, x.T.contiguous().T, weights, tokens, slots),
        (y, x, weights, tokens, slots.long()),
        (y, x, weights, tokens[1:], slots),
    ):
        with pytest.raises(ValueError, match="must be"):
            OPS.lora(*bad)
