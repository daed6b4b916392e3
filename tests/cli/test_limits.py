"""The least time that a batch can take."""

from __future__ import annotations

import pytest

from motet.cli.limits import Floor, Limits, find_floor, kv_bytes, measure_limits, report
from motet.core.state import StateGroup
from motet.models.loader import WeightSizes, weight_sizes

FULL = StateGroup(None, ("a",), bytes_per_token=10)
WINDOW = StateGroup(4, ("b",), bytes_per_token=100)
DENSE = WeightSizes(1000, 2000, 500, 1000, 0, 1.0, 2.0)


def test_sizes_of_a_tied_and_an_untied_model() -> None:
    config = {"vocab_size": 50, "hidden_size": 4}
    sizes = {"embed.weight": (200, 400), "layer.weight": (64, 128)}
    tied = weight_sizes(sizes, config)
    assert tied == WeightSizes(64, 128, 200, 400, 0, 1.0, 2.0)
    assert weight_sizes({**sizes, "lm_head.weight": (200, 400)}, config) == tied


def test_a_token_meets_some_of_the_experts() -> None:
    config = {"vocab_size": 50, "hidden_size": 4, "num_experts": 8, "num_experts_per_tok": 2}
    names = [f"mlp.experts.{i}.up.weight" for i in range(8)]
    sizes = weight_sizes({"embed.weight": (200, 400), "q.weight": (16, 32), **dict.fromkeys(names, (10, 20))}, config)
    assert (sizes.num_values, sizes.num_bytes) == (16 + 20, 32 + 160)
    assert sizes.bytes_read(1) == 400 + 32 + 40
    assert sizes.bytes_read(2) == 400 + 32 + 160 * (1 - 0.75**2)


def test_memory_bound_steps() -> None:
    limits = Limits("bfloat16", bytes_per_s=1e3, ops_per_s=1e12)
    floor = find_floor(limits, DENSE, (FULL,), 1, 5, 4, max_num_seqs=8, max_num_batched_tokens=5)
    assert floor.prefill_s == pytest.approx(3.0)  # all weights once
    assert floor.decode_s == pytest.approx(3 * 3.0 + 10 * (6 + 7 + 8) / 1e3)


def test_compute_bound_steps_and_the_head_of_rows_that_need_it() -> None:
    limits = Limits("bfloat16", bytes_per_s=1e12, ops_per_s=1e3)
    floor = find_floor(limits, DENSE, (), 4, 10, 3, max_num_seqs=2, max_num_batched_tokens=20)
    assert floor.prefill_s == pytest.approx(2 * (40 * 1000 + 4 * 500) / 1e3)
    assert floor.decode_s == pytest.approx(2 * 4 * 2 * 1500 / 1e3)


def test_a_window_bounds_what_is_read() -> None:
    assert kv_bytes((FULL, WINDOW), 3) == 3 * 110
    assert kv_bytes((FULL, WINDOW), 9) == 90 + 400


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "int8"])
def test_limits_are_measured(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.cli.limits.MEASURE_S", 0.001)
    monkeypatch.setattr("motet.cli.limits.NUM_READ_BYTES", 1 << 20)
    monkeypatch.setattr("motet.cli.limits.PRODUCT_SIZE", 64)
    limits = measure_limits(precision)
    assert limits.bytes_per_s > 0
    assert limits.ops_per_s > 0
    assert str(limits).endswith(f"/s in {precision}")


def test_the_share_is_of_the_floor() -> None:
    found = report(Limits("int8", 1.0, 2.0), Floor(1.0, 2.0), 4.0)
    assert found["share"] == 0.75
    assert found["floor_s"] == 3.0
