"""The compiled kernels, loaded once, for the best instruction set of this machine.

`MOTET_ISA` names another one (`motet env` lists them): for finding out whether a fault is in one of them.
"""

from __future__ import annotations

import logging
import os

import torch  # before the kernels: they share the OpenMP runtime, and with it the threads, that torch brings

from motet.core.errors import ConfigError, UnsupportedError

try:
    import motet._kernels as _kernels
except ImportError as error:
    _import_error: ImportError | None = error
else:
    _import_error = None

LINEAR_BLOCK = 64 if _import_error else _kernels.LINEAR_BLOCK
QUANT_BLOCK = 32 if _import_error else _kernels.QUANT_BLOCK
GROUP_META_BYTES = 20 if _import_error else _kernels.GROUP_META_BYTES
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
CACHE_DTYPE_CODES = {**DTYPE_CODES, torch.int8: 3, torch.float8_e4m3fn: 4}


def supported_isas() -> list[str]:
    """Instruction sets that were built and that this machine has, from plain to best; none without kernels."""
    return [] if _import_error else _kernels.supported_isas()


def _load() -> _kernels.Kernels | None:
    if _import_error:
        logging.getLogger("motet").warning(
            "the C++ kernels are missing (%s): ops run on the torch reference, which is slower, and a result's last "
            "bits may depend on the batch; install a C++ compiler (g++) and then Motet again",
            _import_error,
        )
        return None
    isas = supported_isas()
    wanted = os.environ.get("MOTET_ISA") or isas[-1]
    if wanted not in isas:
        raise ConfigError(f"MOTET_ISA must be one of {', '.join(isas)} on this machine, got {wanted!r}")
    return _kernels.Kernels(wanted)


_loaded = _load()


def kernels() -> _kernels.Kernels:
    """The kernels in use. Raises UnsupportedError without any."""
    if _loaded is None:
        raise UnsupportedError(f"the C++ kernels are missing ({_import_error}); use the reference ops")
    return _loaded


def new_recorder() -> _kernels.Recorder:
    """An empty program for the kernels in use. Raises UnsupportedError without any."""
    return _kernels.Recorder(kernels().isa)


def symbol_code(symbol: int, times: int = 1) -> int:
    """What stands for symbol number `symbol`, multiplied by `times`, where a kernel expects a count."""
    return _kernels.count_of_symbol(symbol, times)


def is_available() -> bool:
    return _loaded is not None


def isa() -> str | None:
    """The instruction set in use, None without kernels."""
    return None if _loaded is None else _loaded.isa
