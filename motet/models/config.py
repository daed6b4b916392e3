"""Reading a checkpoint's config into the typed config of an architecture."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

import msgspec

from motet.core.errors import LoadError, UnsupportedError
from motet.core.registry import unsupported
from motet.nn.attention import AttentionShape

T = TypeVar("T", bound=msgspec.Struct)

# Keys that change what a model computes. A config that sets one which its architecture does not read is refused,
# since its weights would load and its answers would be wrong.
COMPUTE_KEYS = (
    "attention_chunk_size",
    "attention_multiplier",
    "attention_sinks",
    "attn_logit_softcapping",
    "attn_output_gate",
    "clip_qkv",
    "embedding_multiplier",
    "final_logit_softcapping",
    "layer_types",
    "logit_scale",
    "logits_scaling",
    "no_rope_layers",
    "qk_layernorm",
    "residual_multiplier",
    "scale_depth",
    "scale_emb",
    "use_bidirectional_attention",
    "use_qk_norm",
)


def read_config(config: dict[str, Any], kind: type[T], **aliases: str) -> T:
    """`config.json` as `kind`. Keys that `kind` does not have are about other things; null is a value where the key's
    type allows None, and means the default elsewhere. `aliases`: other names of keys, other=key.

    Raises LoadError for a missing key or a value of the wrong type, UnsupportedError for a key of COMPUTE_KEYS that
    `kind` does not have.
    """
    config = {**{aliases[key]: value for key, value in config.items() if key in aliases}, **config}
    fields = {item.encode_name: type(None) in get_args(item.type) for item in msgspec.structs.fields(kind)}
    for key in COMPUTE_KEYS:
        if key not in fields:
            require(config, key, None, False, 0, 1, allow_true=False)
    kept = {key: value for key, value in config.items() if value is not None or fields.get(key, False)}
    try:
        return msgspec.convert(kept, kind, strict=False)
    except msgspec.ValidationError as error:
        raise LoadError(f"config of {config.get('model_type', 'the model')!r}: {error}") from None


def require(config: dict[str, Any], key: str, *allowed: Any, allow_true: bool = True) -> None:
    """Raise UnsupportedError when `config` sets `key` to anything but one of `allowed`."""
    value = config.get(key, allowed[0])
    is_neutral = value in allowed and (allow_true or value is not True)
    # A list of layers that are all alike says nothing new.
    if not is_neutral and not (isinstance(value, list) and all(item == FULL for item in value)):
        raise UnsupportedError(f"{key}={value!r} of this checkpoint's config is not supported")


FULL, SLIDING = "full_attention", "sliding_attention"


def layer_windows(layer_types: list[str], num_layers: int, window: int | None) -> list[int | None]:
    """Per layer how many keys a query sees, itself included (None: all). Raises UnsupportedError for other types."""
    if len(layer_types) != num_layers:
        raise LoadError(f"layer_types names {len(layer_types)} layers, but num_hidden_layers is {num_layers}")
    for name in layer_types:
        if name not in (FULL, SLIDING):
            raise unsupported("layer_types entry", name, (FULL, SLIDING))
    if SLIDING in layer_types and window is None:
        raise LoadError(f"layer_types has {SLIDING!r} layers, but sliding_window is not set")
    return [window if name == SLIDING else None for name in layer_types]


def windows_above(first: int, num_layers: int, window: int | None) -> list[str]:
    """Layer types of a model whose layers from number `first` on have a window."""
    return [SLIDING if window is not None and i >= first else FULL for i in range(num_layers)]


def windows_between(pattern: int, num_layers: int) -> list[str]:
    """Layer types of a model in which every `pattern`-th layer sees everything and the others have a window."""
    return [FULL if (i + 1) % pattern == 0 else SLIDING for i in range(num_layers)]


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the configs of most decoder-only models have in common; defaults that differ are overridden."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        counts = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "kv_heads", "head_size")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) is not a multiple of num_key_value_heads "
                f"({self.kv_heads})"
            )

    @property
    def kv_heads(self) -> int:
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim

    def attention_shape(self, scale: float | None = None, soft_cap: float | None = None) -> AttentionShape:
        return AttentionShape(
            self.hidden_size, self.num_attention_heads, self.kv_heads, self.head_size, scale, soft_cap
        )
