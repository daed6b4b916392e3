"""The adapters that clients have named: those in memory, and those that are read again when a request needs them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

import torch

from motet.core.config import LoRAConfig
from motet.core.errors import InputError
from motet.core.lora import LoRARequest
from motet.lora.peft import FILES, Adapter, read_adapter
from motet.nn.lora import AdapterSite

Stamp = tuple[tuple[int, int, int], ...]


class AdapterLookup(Protocol):
    def find(self, key: str) -> Adapter | None:
        """The adapter of this key, None when nothing uses it any more."""


class AdapterStore(Protocol):
    """What the engine asks. Safe to call from any thread."""

    def find(self, key: str) -> Adapter | None: ...

    def require(self, request: LoRARequest) -> Adapter:
        """The adapter with the content that its files have now; whoever holds it keeps it in memory.

        Raises LoadError or UnsupportedError for files that cannot be used, InputError for an id that is taken.
        """

    def remove(self, lora_id: int) -> bool:
        """Forget an id; requests that run keep their adapter. False when it is unknown."""

    def ids(self) -> set[int]: ...


class NoAdapterStore:
    """The engine runs without adapters."""

    def find(self, key: str) -> Adapter | None:
        return None

    def require(self, request: LoRARequest) -> Adapter:
        raise InputError(f"adapter {request.lora_name!r} needs an engine with enable_lora=True")

    def remove(self, lora_id: int) -> bool:
        return False

    def ids(self) -> set[int]:
        return set()


NO_ADAPTER_STORE = NoAdapterStore()


@dataclass
class KnownAdapter:
    """stamp: of the files when they were read."""

    request: LoRARequest
    stamp: Stamp | None
    key: str


class FileAdapterStore:
    """Reads adapters from folders and keeps the `max_cpu_loras` that were used last."""

    def __init__(self, config: LoRAConfig, sites: Iterable[AdapterSite], dtype: torch.dtype) -> None:
        self._config, self._dtype = config, dtype
        self._sites = {site.module: site for site in sites}
        self._known: dict[int, KnownAdapter] = {}
        self._kept: OrderedDict[str, Adapter] = OrderedDict()
        self._alive: WeakValueDictionary[str, Adapter] = WeakValueDictionary()  # kept here, or held by a request
        self._lock = threading.Lock()

    def find(self, key: str) -> Adapter | None:
        return self._alive.get(key)

    def require(self, request: LoRARequest) -> Adapter:
        with self._lock:
            known = self._known.get(request.lora_int_id)
            if known is not None and not request.load_inplace:
                self._check_same(known.request, request)
            stamp = _stamp(Path(request.lora_path).expanduser())
            adapter = self._unchanged(known, request, stamp) or self._read(request)
            self._known[request.lora_int_id] = KnownAdapter(request, stamp, adapter.key)
            self._kept[adapter.key] = adapter
            self._kept.move_to_end(adapter.key)
            while len(self._kept) > self._config.max_cpu_loras:
                self._kept.popitem(last=False)
            return adapter

    @staticmethod
    def _check_same(known: LoRARequest, request: LoRARequest) -> None:
        if (known.lora_name, known.lora_path) != (request.lora_name, request.lora_path):
            raise InputError(
                f"lora_int_id {request.lora_int_id} is adapter {known.lora_name!r} from {known.lora_path!r}, not "
                f"{request.lora_name!r} from {request.lora_path!r}; use another id, or remove_lora it first"
            )

    def _unchanged(self, known: KnownAdapter | None, request: LoRARequest, stamp: Stamp | None) -> Adapter | None:
        """What was read before, if it is in memory and its files are the same, or gone."""
        if known is None or (known.request.lora_name, known.request.lora_path) != (
            request.lora_name,
            request.lora_path,
        ):
            return None
        return self._alive.get(known.key) if stamp in (None, known.stamp) else None

    def _read(self, request: LoRARequest) -> Adapter:
        adapter = read_adapter(request, self._sites, self._dtype, self._config.max_rank)
        return self._alive.setdefault(adapter.key, adapter)

    def remove(self, lora_id: int) -> bool:
        with self._lock:
            known = self._known.pop(lora_id, None)
            if known is not None and all(other.key != known.key for other in self._known.values()):
                self._kept.pop(known.key, None)
            return known is not None

    def ids(self) -> set[int]:
        with self._lock:
            return set(self._known)


def _stamp(folder: Path) -> Stamp | None:
    """Changes when the files do; None where one is missing."""
    try:
        found = [(folder / name).stat() for name in FILES]
    except OSError:
        return None
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in found)
