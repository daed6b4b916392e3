"""Quantised weights from file to model: they stay as small as they are, and mean what the `gguf` package says.

Activations are quantised to 8 bits on the way into each layer, so that results only come close to those of floats.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from motet.core.config import SCHEMES
from motet.core.errors import ConfigError
from motet.models.gguf import GGUFFile
from motet.models.loader import LoadedModel
from motet.models.registry import PACKAGED, packaged_model
from motet.ops import cpu
from motet.ops.backend import ReferenceOps
from motet.ops.gguf_types import DEQUANTIZERS, PLAIN
from motet.ops.quantized import Matrix, QuantizedMatrix
from tests.checkpoints import CONFIGS, VOCAB_SIZE, save_model
from tests.conftest import TinyCheckpoints
from tests.models.forward import load, run_logits
from tests.models.gguf_files import ARCHITECTURES, write_gguf

TOKEN_IDS = torch.randint(0, VOCAB_SIZE, (45,), generator=torch.Generator().manual_seed(1)).tolist()
KINDS = [kind.name for kind in (*DEQUANTIZERS, *PLAIN)]
# Rows that every type's blocks divide.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}


class CountingOps(cpu.CpuOps if cpu.is_available() else ReferenceOps):  # type: ignore[misc]
    """Notes what it is given to pack, and what the results take."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Matrix] = []
        self.num_bytes = 0
        self.pack_linear = self._pack

    def _pack(self, *parts: Matrix, scheme: str | None = None) -> Any:
        packed = type(self).pack_linear(*parts, scheme=scheme)
        self.parts += parts
        self.num_bytes += getattr(packed, "num_bytes", 0)
        return packed


class DequantizingOps(ReferenceOps):
    """Turns blocks into floats when they are packed."""

    pack_linear = staticmethod(
        lambda *parts, scheme: torch.cat(
            [part.dequantize(torch.float32) if isinstance(part, QuantizedMatrix) else part.float() for part in parts]
        )
    )


def logits(loaded: LoadedModel) -> Tensor:
    return run_logits(loaded, TOKEN_IDS, 45)


def deviation(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the error, relative to that of the values."""
    return float((actual - expected).norm() / expected.norm())


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    save_model(folder, "Llama", **WIDE)
    return folder


def assert_close_to_floats(path: Path, bound: float) -> None:
    """Exactly the dequantised model, if only activations were not quantised; and with them not far from it."""
    expected = logits(load(path, dequantized=True))
    assert torch.equal(logits(load(path, ops=DequantizingOps())), expected)
    defined = logits(load(path))
    assert deviation(defined, expected) < bound
    assert deviation(logits(load(path, ops=CountingOps())), defined) < bound / 10
    assert deviation(logits(load(path, dtype="bfloat16", quantization="gguf")), expected) < bound


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_close_to_its_dequantised_weights(kind: str, wide: Path, tmp_path: Path) -> None:
    assert_close_to_floats(write_gguf(wide, "Llama", tmp_path / "model.gguf", kind), 0.1)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_every_family_keeps_its_blocks(family: str, tmp_path: Path) -> None:
    """Rows of q and k are put into another order, biases and tied heads found, norms dequantised."""
    save_model(tmp_path / "hf", family)
    path = write_gguf(tmp_path / "hf", family, tmp_path / "model.gguf", "Q8_0")
    assert_close_to_floats(path, 0.15)
    ops = CountingOps()
    assert load(path, ops=ops).num_weight_bytes == GGUFFile(path).num_bytes
    assert all(isinstance(part, QuantizedMatrix) and part.kind.name == "Q8_0" for part in ops.parts)


@pytest.mark.parametrize("kind", PLAIN)
def test_floats_keep_their_type(kind: Any, tiny_checkpoints: TinyCheckpoints, tmp_path: Path) -> None:
    path = write_gguf(tiny_checkpoints("Llama")[0], "Llama", tmp_path / "model.gguf", kind.name)
    ops = CountingOps()
    loaded = load(path, ops=ops, dtype="bfloat16")
    assert {part.dtype for part in ops.parts if isinstance(part, Tensor)} == {PLAIN[kind]}
    assert loaded.model.norm.weight.dtype is torch.float32  # type: ignore[attr-defined]
    assert loaded.num_weight_bytes == GGUFFile(path).num_bytes


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantising_what_is_quantised(scheme: str, tiny_checkpoints: TinyCheckpoints, tmp_path: Path) -> None:
    folder = tiny_checkpoints("Llama")[0]
    path = write_gguf(folder, "Llama", tmp_path / "a.gguf", "Q8_0")
    with pytest.raises(ConfigError, match=rf"quantization='{scheme}' .* already quantised \(16 Q8_0, 5 F32\); leave"):
        load(path, quantization=scheme)
    floats = write_gguf(folder, "Llama", tmp_path / "b.gguf", "F32")
    assert torch.equal(logits(load(floats, quantization=scheme)), logits(load(folder, quantization=scheme)))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", CONFIGS)
def test_checkpoints_quantised_at_load(family: str, scheme: str, tiny_checkpoints: TinyCheckpoints) -> None:
    """By the kernels as by the definition. (Four bits are too few for such small layers to come close to floats.)"""
    folder = tiny_checkpoints(family)[0]
    whole, defined = load(folder), load(folder, quantization=scheme)
    expected = logits(defined)
    assert deviation(logits(load(folder, ops=CountingOps(), quantization=scheme)), expected) < 0.01
    assert deviation(expected, logits(whole)) < {"int8": 0.2, "int4": 1.5}[scheme]
    assert defined.num_weight_bytes / whole.num_weight_bytes < {"int8": 0.32, "int4": 0.27}[scheme]


def test_routers_and_tables_are_not_cut_to_four_bits(tiny_checkpoints: TinyCheckpoints) -> None:
    folder = tiny_checkpoints("Mixtral")[0]
    model: Any = load(folder, quantization="int4").model
    assert model.layers[0].feed_forward.router.weight.dtype is torch.float32
    eight: Any = load(folder, quantization="int8").model
    for four_bits, eight_bits in ((model.embed.table, eight.embed.table), (model.head.weight, eight.head.weight)):
        assert torch.equal(four_bits[0].values, eight_bits[0].values)
    assert not torch.equal(
        model.layers[0].attention.out.weight[0].values, eight.layers[0].attention.out.weight[0].values
    )


@pytest.mark.weights
@pytest.mark.skipif(not cpu.is_available(), reason="the definitions in torch keep floats")
@pytest.mark.parametrize("alias", PACKAGED)
def test_packaged_models_stay_as_small_as_their_files(alias: str) -> None:
    file, ops = GGUFFile(packaged_model(alias)), CountingOps()
    loaded = load(alias, ops=ops, dtype="bfloat16")
    matrices = sum(info.num_bytes for info in file.tensors.values() if len(info.shape) == 2)
    assert matrices <= ops.num_bytes <= 1.05 * matrices
    assert loaded.num_weight_bytes == file.num_bytes
