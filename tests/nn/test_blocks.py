"""Blocks against the formulas that they are named after."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from motet.nn.attention import alibi_slopes
from motet.nn.linear import Embedding, Linear, LMHead
from motet.nn.mlp import MLP, GatedMLP
from motet.nn.moe import MoE
from motet.nn.norm import LayerNorm, RMSNorm
from tests.nn.source import context

G = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=G)


def test_linear_puts_projections_side_by_side() -> None:
    tensors = {"q.weight": random(4, 3), "q.bias": random(4), "k.weight": random(2, 3), "k.bias": random(2)}
    x, residual = random(5, 3), random(5, 6)
    linear = Linear(context(tensors), ["q", "k"], 3, [4, 2], bias=True)
    expected = torch.cat([F.linear(x, tensors[f"{p}.weight"], tensors[f"{p}.bias"]) for p in "qk"], dim=1)
    torch.testing.assert_close(linear(x), expected)
    torch.testing.assert_close(linear(x, residual), expected + residual)


def test_linear_in_another_order() -> None:
    tensors = {"a.weight": random(4, 3), "a.bias": random(4)}
    order, x = torch.tensor([2, 0, 3, 1]), random(5, 3)
    plain = Linear(context(tensors), "a", 3, 4, bias=True)
    torch.testing.assert_close(Linear(context(tensors), "a", 3, 4, bias=True, order=order)(x), plain(x)[:, order])


def test_tied_head_uses_the_table() -> None:
    table, hidden = random(7, 3), random(2, 3)
    ctx = context({"embed.weight": table})
    embed = Embedding(ctx, "embed", 7, 3, scale=2.0)
    ids = torch.tensor([6, 0])
    assert torch.equal(embed(ids), table[ids] * 2)
    torch.testing.assert_close(LMHead(ctx, "head", 7, 3, embed)(hidden), hidden @ table.T)
    capped = LMHead(ctx, "head", 7, 3, embed, soft_cap=1.5)(hidden)
    torch.testing.assert_close(capped, 1.5 * torch.tanh(hidden @ table.T / 1.5))


def test_gated_mlp_with_separate_and_fused_tensors() -> None:
    gate, up, down, x = random(6, 4), random(6, 4), random(4, 6), random(3, 4)
    separate = context({"m.gate_proj.weight": gate, "m.up_proj.weight": up, "m.down_proj.weight": down})
    fused = context({"m.gate_up_proj.weight": torch.cat([gate, up]), "m.down_proj.weight": down})
    expected = (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
    torch.testing.assert_close(GatedMLP(separate, "m", 4, 6)(x), expected)
    torch.testing.assert_close(GatedMLP(fused, "m", 4, 6, fused=True)(x, x), expected + x)


def test_mlp() -> None:
    tensors = {"u.weight": random(4, 6), "u.bias": random(6), "d.weight": random(6, 4), "d.bias": random(4)}
    x = random(3, 4)
    expected = F.gelu(x @ tensors["u.weight"] + tensors["u.bias"]) @ tensors["d.weight"] + tensors["d.bias"]
    mlp = MLP(context(tensors), "u", "d", 4, 6, "gelu", transposed=True)
    torch.testing.assert_close(mlp(x, x), expected + x)


@pytest.mark.parametrize("renormalize", [True, False])
def test_moe_with_separate_and_fused_experts(renormalize: bool) -> None:
    gate_up, down, router, x = random(5, 12, 4), random(5, 4, 6), random(5, 4), random(7, 4)
    shared = {"router.weight": router}
    fused = context({**shared, "e.gate_up_proj": gate_up, "e.down_proj": down})
    separate = dict(shared)
    for e in range(5):
        gate, up = gate_up[e].chunk(2)
        separate |= {f"e.{e}.w1.weight": gate, f"e.{e}.w3.weight": up, f"e.{e}.w2.weight": down[e]}
    expected = torch.zeros(7, 4)
    for token in range(7):
        probabilities = torch.softmax(router @ x[token], dim=0)
        best = probabilities.topk(2)
        weights = best.values / best.values.sum() if renormalize else best.values
        for weight, e in zip(weights, best.indices.tolist(), strict=True):
            gate, up = (gate_up[e] @ x[token]).chunk(2)
            expected[token] += weight * (down[e] @ (F.silu(gate) * up))
    for ctx in (fused, context(separate)):
        moe = MoE(ctx, "router", "e", ("w1", "w3", "w2"), 4, 6, 5, 2, renormalize)
        torch.testing.assert_close(moe(x, torch.zeros(7, 4)), expected)
        ctx.weights.finish()


def test_norms_keep_float32_weights() -> None:
    tensors = {"n.weight": random(8), "n.bias": random(8)}
    x = random(3, 8)
    ctx = context(tensors, torch.bfloat16)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(RMSNorm(ctx, "n", 8, 1e-6)(x), expected * tensors["n.weight"])
    torch.testing.assert_close(RMSNorm(ctx, "n", 8, 1e-6, offset=1.0)(x), expected * (tensors["n.weight"] + 1))
    layer_norm = LayerNorm(ctx, "n", 8, 1e-5)
    assert layer_norm.weight.dtype == torch.float32
    torch.testing.assert_close(layer_norm(x), F.layer_norm(x, (8,), tensors["n.weight"], tensors["n.bias"]))
    assert layer_norm(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("num_heads", [1, 2, 6, 8, 12, 16, 25, 112])
def test_alibi_slopes_are_those_of_transformers(num_heads: int) -> None:
    # [heads, 1, keys]: slope times position
    expected = build_alibi_tensor(torch.ones(1, 2, dtype=torch.int64), num_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(num_heads), expected, rtol=1e-6, atol=0)
