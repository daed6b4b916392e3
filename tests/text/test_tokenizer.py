from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.core.errors import InputError
from motet.text.hf import tokenizer_from_folder
from motet.text.tokenizer import Tokenizer
from tests.text.sources import KINDS, odd_text, tiny
from tests.tokenizers_tiny import byte_fallback, byte_level, save_tiny_tokenizer

CHAT = [{"role": "user", "content": "Hello, how are you?"}, {"role": "assistant", "content": "fine"}]


def test_facts() -> None:
    tokenizer = Tokenizer(byte_fallback(), {"bos_token": "<s>", "eos_token": "</s>"}, eos_token_ids=[7, 9])
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<s>", 1)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("</s>", 2)
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == (None, None)
    assert tokenizer.eos_token_ids == {2, 7, 9}
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.vocab_size == 400
    assert tokenizer.adds_bos
    assert not Tokenizer(byte_level(), {"bos_token": "<|endoftext|>"}).adds_bos


def test_saved_padding_and_truncation_do_not_apply() -> None:
    backend = byte_level()
    backend.enable_padding(length=50)
    backend.enable_truncation(2)
    assert Tokenizer(backend).encode("the quick brown fox") == byte_level().encode("the quick brown fox").ids


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(odd_text)
def test_round_trip(kind: str, text: str) -> None:
    tokenizer = tiny(kind)
    if "▁" not in text and "<" not in text:  # "▁" is a space to SentencePiece; "<" may begin a special token
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_in_text_are_recognised() -> None:
    assert tiny("byte_level").encode("<|im_start|>a<|im_end|>")[::2] == [1, 2]


def test_a_templated_prompt_gets_no_second_bos() -> None:
    """B33: a text that begins with BOS, as chat templates write it."""
    tokenizer = tiny("byte_fallback")
    once = tokenizer.encode("<s>the")
    assert once == tokenizer.encode("<s>the", add_special_tokens=False)
    assert once.count(1) == 1
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.encode("<s><s>the").count(1) == 2  # what the text itself says stays


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("generate", [True, False])
def test_chat_ids_equal_transformers(kind: str, generate: bool, tmp_path: Path) -> None:
    """B33: no BOS but the template's."""
    transformers = pytest.importorskip("transformers")
    save_tiny_tokenizer(tmp_path, kind)
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = oracle.apply_chat_template(CHAT, add_generation_prompt=generate, return_dict=False)
    tokenizer = tokenizer_from_folder(tmp_path)
    ids = tokenizer.encode_chat(CHAT, add_generation_prompt=generate)
    assert ids == expected
    assert ids.count(1) == (1 if kind == "byte_fallback" else len(CHAT) + generate)
    # An already templated prompt gives the same ids through the plain path.
    assert tokenizer.encode(tokenizer.apply_chat_template(CHAT, add_generation_prompt=generate)) == expected


def test_text_that_is_not_unicode() -> None:
    with pytest.raises(InputError, match="Unicode"):
        tiny("byte_level").encode("a\ud800b")


@pytest.mark.parametrize("kind", KINDS)
def test_token_text(kind: str) -> None:
    tokenizer = tiny(kind)
    name = "Ġthe" if kind == "byte_level" else "▁the"
    assert tokenizer.token_text(tokenizer.backend.token_to_id(name)) == " the"
    assert tokenizer.token_text(tokenizer.eos_token_id) == tokenizer.eos_token
    invalid = next(token_id for token_id in range(400) if tokenizer.token_bytes[token_id] == b"\x80")
    assert tokenizer.token_text(invalid) == "\ufffd"


def test_bad_words() -> None:
    tokenizer = tiny("byte_level")
    the, spaced_the = (tokenizer.encode(text) for text in ("the", " the"))
    assert len(the) == len(spaced_the) == 1
    assert tokenizer.bad_word_ids("the") == [the, spaced_the]
    assert tokenizer.bad_word_ids("  the") == [the, spaced_the]
    # " zz" is a space token and "zz": the second sequence would forbid more than the word.
    assert tokenizer.bad_word_ids("zz") == [tokenizer.encode("zz")]
    for empty in ("", "  "):
        with pytest.raises(InputError, match="bad_words"):
            tokenizer.bad_word_ids(empty)


@settings(max_examples=60, deadline=None)
@given(st.text("the zxq", min_size=1).filter(str.strip))
def test_bad_words_have_no_bos(word: str) -> None:
    for ids in tiny("byte_fallback").bad_word_ids(word):
        assert 1 not in ids


class TestChosenTemplate:
    def test_none_at_all(self) -> None:
        with pytest.raises(InputError, match="pass chat_template"):
            tiny("byte_level").apply_chat_template(CHAT)
        assert tiny("byte_level").apply_chat_template(CHAT, chat_template="x{{ messages | length }}") == "x2"

    def test_named(self) -> None:
        tokenizer = Tokenizer(byte_level(), chat_template={"default": "plain", "tool_use": "tools", "rag": "documents"})
        assert tokenizer.apply_chat_template(CHAT) == "plain"
        assert tokenizer.apply_chat_template(CHAT, tools=[]) == "plain"
        assert tokenizer.apply_chat_template(CHAT, tools=[{"type": "function"}]) == "tools"
        assert tokenizer.apply_chat_template(CHAT, chat_template="rag") == "documents"

    def test_no_default(self) -> None:
        tokenizer = Tokenizer(byte_level(), chat_template={"rag": "x", "tool_use": "y"})
        with pytest.raises(InputError, match="rag, tool_use"):
            tokenizer.apply_chat_template(CHAT)

    def test_special_tokens_and_options_are_variables(self) -> None:
        tokenizer = Tokenizer(
            byte_level(), {"eos_token": "<|im_end|>"}, chat_template="{{ eos_token }}{{ enable_thinking }}"
        )
        assert tokenizer.apply_chat_template(CHAT, enable_thinking=False) == "<|im_end|>False"
        assert tokenizer.apply_chat_template(CHAT, eos_token="!") == "!"


def test_the_text_folder_loads_no_heavy_package() -> None:
    names = ("tokenizer", "hf", "gguf", "output", "chat")
    imports = ";".join(f"import motet.text.{name}" for name in names)
    check = "import sys; print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", f"{imports};{check}"], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
