"""Configs that would load and answer wrongly are refused, with the key in the message."""

from __future__ import annotations

from typing import Any

import pytest

from motet.core.errors import LoadError, UnsupportedError
from motet.models.config import (
    COMPUTE_KEYS,
    FULL,
    SLIDING,
    DecoderConfig,
    layer_windows,
    read_config,
    windows_above,
    windows_between,
)
from tests.conftest import TinyCheckpoints
from tests.models.forward import load

SIZES = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}


class Windowed(DecoderConfig, frozen=True, kw_only=True):
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("Llama", {"hidden_act": "quick_gelu"}, "activation 'quick_gelu' is not supported"),
        ("Llama", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("Llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
        ("Llama", {"layer_types": ["sliding_attention"] * 2}, "layer_types="),
        ("Llama", {"attention_sinks": True}, "attention_sinks=True"),
        ("Mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types="),
        ("Qwen2", {"layer_types": ["chunked_attention"] * 4}, "layer_types entry 'chunked_attention'"),
        ("Gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("Gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ("Gemma3", {"layer_types": ["linear_attention"] * 4}, "layer_types entry 'linear_attention'"),
        ("GPT2", {"add_cross_attention": True}, "add_cross_attention=True"),
        ("Bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm=True"),
        ("Llama", {"rope_parameters": {"rope_type": "proportional"}}, "rope type 'proportional' is not supported"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_named(
    family: str, values: dict[str, Any], message: str, tiny_checkpoints: TinyCheckpoints
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        load(tiny_checkpoints(family)[0], hf_overrides=values)


@pytest.mark.parametrize("value", [None, False, 0, 1, 1.0, 0.0, []])
def test_neutral_values_are_not_refused(value: Any) -> None:
    read_config({**SIZES, **dict.fromkeys(COMPUTE_KEYS, value)}, DecoderConfig)


@pytest.mark.parametrize("key", COMPUTE_KEYS)
@pytest.mark.parametrize("value", [True, 0.5, [0, 1], "some"])
def test_others_are(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=key):
        read_config({**SIZES, key: value}, DecoderConfig)


def test_layers_that_are_all_alike_say_nothing() -> None:
    read_config({**SIZES, "layer_types": [FULL]}, DecoderConfig)


def test_null_is_a_value_where_it_can_be_one() -> None:
    assert read_config(SIZES, Windowed).sliding_window == 4096
    assert read_config({**SIZES, "sliding_window": None}, Windowed).sliding_window is None
    assert read_config({**SIZES, "rms_norm_eps": None}, Windowed).rms_norm_eps == 1e-6


def test_aliases_give_way_to_names() -> None:
    values = {**SIZES, "n_layer": 3}
    del values["num_hidden_layers"]
    assert read_config(values, DecoderConfig, n_layer="num_hidden_layers").num_hidden_layers == 3
    assert read_config({**SIZES, "n_layer": 3}, DecoderConfig, n_layer="num_hidden_layers").num_hidden_layers == 1


def test_layer_windows() -> None:
    assert layer_windows([FULL, SLIDING], 2, 5) == [None, 5]
    assert layer_windows([FULL], 1, None) == [None]
    with pytest.raises(LoadError, match="names 2 layers, but num_hidden_layers is 3"):
        layer_windows([FULL, SLIDING], 3, 5)
    with pytest.raises(LoadError, match="sliding_window is not set"):
        layer_windows([FULL, SLIDING], 2, None)
    assert windows_above(1, 3, 5) == [FULL, SLIDING, SLIDING]
    assert windows_above(0, 2, None) == [FULL, FULL]
    assert windows_between(3, 4) == [SLIDING, SLIDING, FULL, SLIDING]
