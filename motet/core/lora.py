"""Adapters, as clients name them and as the scheduler sees them."""

from __future__ import annotations

from typing import Protocol

import msgspec

from motet.core.errors import InputError
from motet.core.fields import settle_fields


class LoRARequest(msgspec.Struct, frozen=True):
    """Which adapter answers a request; names are vLLM's. Raises InputError.

    lora_int_id: from 1 on, stands for one name and path until the adapter is removed
    lora_path: a folder as PEFT writes it; when its files change, the next request takes the new ones
    load_inplace: this name and path take the place of what the id stood for
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False

    def __post_init__(self) -> None:
        settle_fields(self, InputError)
        if self.lora_int_id < 1:
            raise InputError(f"lora_int_id must be at least 1, got {self.lora_int_id}")
        if not self.lora_name or not self.lora_path:
            raise InputError(f"lora_name and lora_path must not be empty, got {self.lora_name!r}, {self.lora_path!r}")


class LoadedAdapter(Protocol):
    @property
    def key(self) -> str:
        """A digest of name and content: equal keys, equal answers."""
