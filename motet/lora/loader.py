"""Copies adapters to where the model reads them."""

from __future__ import annotations

from collections.abc import Sequence

from motet.core.plan import AdapterLoad
from motet.lora.store import AdapterLookup
from motet.nn.lora import LinearAdapters


class SlotLoader:
    """Runs on the runner's thread, between steps. `layers`: of the model; `adapters`: where a plan's are found."""

    def __init__(self, layers: Sequence[LinearAdapters], adapters: AdapterLookup) -> None:
        self._layers, self._adapters = layers, adapters

    def apply(self, loads: Sequence[AdapterLoad]) -> None:
        for load in loads:
            adapter = self._adapters.find(load.key)
            if adapter is None:  # its requests are gone, and a later plan gives its slot to another one
                continue
            for layer in self._layers:
                layer.load(load.slot - 1, adapter.pairs)
