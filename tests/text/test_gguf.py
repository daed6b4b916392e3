from __future__ import annotations

import random
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from motet.core.errors import LoadError, UnsupportedError
from motet.models.gguf import GGUFFile
from motet.text.gguf import tokenizer_from_gguf
from motet.text.tokenizer import Tokenizer
from tests.text.packaged import ODD_TEXTS, LlamaCpp, write_gguf, write_vocabulary
from tests.text.sources import byte_level_metadata, odd_text, sentencepiece_metadata, tiny

ALPHABETS = (
    "ab",
    "aA \n",
    "lo ",
    "xyz.",
    "\t \n",
    "01 .",
    "日本語の中",
    "😀🚀👍🏽\u200d",
    "=-_ ",
    "etaoin ",
    "áéí\u0301",
)


def random_texts(seed: int, count: int) -> list[str]:
    """Runs over small alphabets, where merges of many lengths compete."""
    rng = random.Random(seed)
    return ["".join(rng.choices(rng.choice(ALPHABETS), k=rng.randrange(1, 40))) for _ in range(count)]


class Packaged:
    """A packaged model's vocabulary, read by Motet and by llama.cpp."""

    def __init__(self, model: str, folder: Path) -> None:
        path = write_vocabulary(model, folder / f"{model}.gguf")
        self.path = path
        self.metadata = GGUFFile(path).metadata
        start = time.process_time()
        self.tokenizer = tokenizer_from_gguf(self.metadata)
        self.load_seconds = time.process_time() - start
        self.llama_cpp = LlamaCpp(path)


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda model: Packaged(model, tmp_path_factory.mktemp("vocabulary")))


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_packaged_models_ids_equal_llama_cpp(packaged: Any, model: str) -> None:
    tokenizer, oracle = packaged(model).tokenizer, packaged(model).llama_cpp
    for text in [*ODD_TEXTS, *random_texts(0, 400)]:
        assert tokenizer.encode(text) == oracle.encode(text), text
        plain = tokenizer.encode(text, add_special_tokens=False)
        assert plain == oracle.encode(text, add_special=False), text
        if "▁" not in text:
            assert tokenizer.decode(plain, skip_special_tokens=False) == text
    assert tokenizer.vocab_size == len(packaged(model).metadata["tokenizer.ggml.tokens"])


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_packaged_models_bytes_equal_llama_cpp(packaged: Any, model: str) -> None:
    tokenizer, oracle = packaged(model).tokenizer, packaged(model).llama_cpp
    ids = [*range(600), *random.Random(1).sample(range(tokenizer.vocab_size), 4000)]
    for token_id in ids:
        assert tokenizer.token_bytes[token_id] == oracle.token_bytes(token_id), token_id
    text = b"".join(oracle.token_bytes(token_id) for token_id in ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text.decode("utf-8", errors="replace")


def test_a_large_vocabulary_loads_quickly(packaged: Any) -> None:
    """262,144 pieces; a slow machine is given five times what it takes on a quiet one."""
    assert packaged("gemma3").load_seconds < 10


def test_smollm2_facts(packaged: Any) -> None:
    tokenizer: Tokenizer = packaged("smollm2").tokenizer
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert not tokenizer.adds_bos
    assert tokenizer.eos_token_ids == {0, 2}  # <|endoftext|> ends an answer too
    assert tokenizer.max_length == 8192
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_gemma3_facts(packaged: Any) -> None:
    tokenizer: Tokenizer = packaged("gemma3").tokenizer
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<bos>", "<eos>")
    assert tokenizer.adds_bos
    assert tokenizer.eos_token_ids == {1, 106}  # <end_of_turn> is named nowhere in the file
    assert tokenizer.chat_template is None


def test_smollm2_ids_equal_transformers(packaged: Any) -> None:
    transformers = pytest.importorskip("transformers")
    path: Path = packaged("smollm2").path
    oracle = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in [*ODD_TEXTS, *random_texts(2, 100)]:
        if not any(map(str.isnumeric, text)):  # transformers reads this vocabulary without its rule for digits
            assert packaged("smollm2").tokenizer.encode(text) == oracle.encode(text), text


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_sentencepiece_equals_llama_cpp_and_the_library(add_space_prefix: bool, tmp_path: Path) -> None:
    metadata = sentencepiece_metadata(add_space_prefix)
    oracle = LlamaCpp(write_gguf(tmp_path / "vocabulary.gguf", metadata))
    tokenizer = tokenizer_from_gguf(metadata)
    twin = tiny("byte_fallback" if add_space_prefix else "no_prefix")
    for text in [*ODD_TEXTS, "a<s>b</s> c", "<s>", *random_texts(3, 200)]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text, add_special=False), text
        assert ids == twin.encode(text, add_special_tokens=False), text
        assert tokenizer.decode(ids) == twin.decode(ids)


@settings(max_examples=60, deadline=None)
@given(odd_text)
def test_user_defined_tokens_are_cut_out_first(text: str) -> None:
    metadata = dict(sentencepiece_metadata(False))
    new = ["é日", "  ", "\n\n"]
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *new]
    metadata["tokenizer.ggml.scores"] = [*metadata["tokenizer.ggml.scores"], -1000.0, -1000.0, -1000.0]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 4, 4, 4]
    tokenizer = tokenizer_from_gguf(metadata)
    ids = tokenizer.encode(f"x{text}é日  \n\n")
    assert ids[-3:] == [400, 401, 402] or text.endswith((" ", "é"))
    assert not tokenizer.special_ids & {400, 401, 402}
    assert "  \n\n" in tokenizer.decode(ids)


def changed(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    keys = {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    return {key: value for key, value in {**base, **keys}.items() if value is not None}


class TestBosAndEos:
    @pytest.mark.parametrize(
        ("pre", "flags", "first", "last"),
        [
            ("gpt-2", {}, None, None),
            ("llama-bpe", {}, 0, None),
            ("llama-bpe", {"add_bos_token": False}, None, None),
            ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, 0, 2),
            ("gpt-2", {"add_bos_token": True, "bos_token_id": None}, None, None),
            ("gpt-2", {"add_bos_token": True, "add_eos_token": True, "bos_token_id": 2}, 2, 2),
        ],
    )
    def test_byte_level(self, pre: str, flags: dict[str, Any], first: int | None, last: int | None) -> None:
        tokenizer = tokenizer_from_gguf(changed(byte_level_metadata(pre), **flags))
        plain = tokenizer.encode("hello", add_special_tokens=False)
        expected = [*([] if first is None else [first]), *plain, *([] if last is None else [last])]
        assert tokenizer.encode("hello") == expected

    def test_sentencepiece_adds_bos_unless_told_otherwise(self) -> None:
        assert tokenizer_from_gguf(sentencepiece_metadata()).encode("a")[0] == 1
        assert tokenizer_from_gguf(changed(sentencepiece_metadata(), add_bos_token=False)).encode("a")[0] != 1

    def test_ends(self) -> None:
        metadata = changed(byte_level_metadata(), eos_token_id=0, eot_token_id=5, eom_token_id=6)
        assert tokenizer_from_gguf(metadata, eos_token_ids=[9]).eos_token_ids == {0, 2, 5, 6, 9}  # 2 is <|im_end|>
        far = tokenizer_from_gguf(changed(byte_level_metadata(), eos_token_id=10**6))
        assert far.eos_token is None

    def test_harmony_messages_end_without_ending_the_answer(self) -> None:
        tokens = ["<|return|>", "<|end|>", "<|start|>", *byte_level_metadata()["tokenizer.ggml.tokens"][3:]]
        metadata = changed(byte_level_metadata(), tokens=tokens, eos_token_id=0)
        assert tokenizer_from_gguf(metadata).eos_token_ids == {0}


def test_chat_templates() -> None:
    base = byte_level_metadata()
    assert tokenizer_from_gguf({**base, "tokenizer.chat_template": "x"}).chat_template == "x"
    both = {**base, "tokenizer.chat_template": "x", "tokenizer.chat_template.tool_use": "y"}
    assert tokenizer_from_gguf(both).chat_template == {"default": "x", "tool_use": "y"}


def test_a_vocabulary_without_types() -> None:
    tokenizer = tokenizer_from_gguf(changed(byte_level_metadata(), token_type=None))
    assert tokenizer.encode("<|im_end|>") == [2]  # known to end an answer, hence special
    assert tokenizer.special_ids == {0, 2}


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({}, LoadError, "tokenizer.ggml.tokens"),
        (changed(byte_level_metadata(), tokens=[]), LoadError, "tokenizer.ggml.tokens"),
        (changed(byte_level_metadata(), model="bert"), UnsupportedError, "'bert'"),
        (changed(byte_level_metadata(), model=None), UnsupportedError, "None"),
        (changed(byte_level_metadata(), pre="kimi-k9"), UnsupportedError, "'kimi-k9'"),
        (changed(byte_level_metadata(), merges=None), LoadError, "tokenizer.ggml.merges"),
        (changed(byte_level_metadata(), merges=["zz yy"]), LoadError, "damaged"),
        (changed(byte_level_metadata(), merges=["nospace"]), LoadError, "damaged"),
        (changed(byte_level_metadata(), token_type=[1, 1]), LoadError, "has 2 entries"),
        (changed(byte_level_metadata(), tokens=["a", "b", "a"]), LoadError, "'a' twice"),
        (changed(byte_level_metadata(), tokens=["a", "\udcff"], token_type=[1, 1]), LoadError, "damaged"),
        (changed(sentencepiece_metadata(), scores=None), LoadError, "tokenizer.ggml.scores"),
        (changed(sentencepiece_metadata(), scores=[1.0]), LoadError, "has 1 entries"),
    ],
)
def test_damaged_files(metadata: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tokenizer_from_gguf(metadata)


def test_empty_tokens_get_a_name() -> None:
    tokens = list(byte_level_metadata()["tokenizer.ggml.tokens"])
    tokens[1] = ""
    assert tokenizer_from_gguf(changed(byte_level_metadata(), tokens=tokens)).vocab_size == len(tokens)
