from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from motet.core.errors import LoadError, UnsupportedError
from motet.text.hf import tokenizer_from_folder
from tests.text.packaged import ODD_TEXTS
from tests.tokenizers_tiny import CHATML, LINES, byte_level, save_tiny_tokenizer

TEXTS = [*LINES, *ODD_TEXTS, "<extra> and <|im_end|><s>", "[PAD] x"]


def token(content: str, **flags: bool) -> dict[str, Any]:
    base = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {"__type": "AddedToken", "content": content, **base, **flags}


def transformers_tokenizer(folder: Path) -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)


def assert_same(folder: Path) -> None:
    oracle = transformers_tokenizer(folder)
    mine = tokenizer_from_folder(folder)
    for text in TEXTS:
        assert mine.encode(text, add_special_tokens=False) == oracle.encode(text, add_special_tokens=False), text
        if not mine.adds_bos or not text.startswith(mine.bos_token or "\0"):
            assert mine.encode(text) == oracle.encode(text), text
        ids = mine.encode(text)
        for skip in (False, True):
            assert mine.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip)
    assert mine.vocab_size == len(oracle)
    for name in ("bos_token", "eos_token", "pad_token", "bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(mine, name) == getattr(oracle, name), name
    assert mine.special_tokens == oracle.special_tokens_map
    assert mine.special_ids == {index for index, added in oracle.added_tokens_decoder.items() if added.special}


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"bos_token": token("<s>"), "pad_token": "[PAD]"},
        {"additional_special_tokens": ["<extra>", "<more>"]},
        {"extra_special_tokens": ["<extra>"]},
        {"extra_special_tokens": {"image_token": "<extra>"}},
        {"added_tokens_decoder": {"400": token("<extra>", lstrip=True), "401": token("and", special=False)}},
        {"added_tokens_decoder": {"401": token("[PAD]", rstrip=True), "400": token("<extra>")}, "pad_token": "[PAD]"},
        {"added_tokens_decoder": {"400": token("[PAD]", special=False)}, "pad_token": "[PAD]"},
        {"added_tokens_decoder": {"400": token("<extra>", special=False)}, "extra_special_tokens": ["<extra>"]},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": False},
    ],
)
def test_tokenizer_json_equals_transformers(kind: str, config: dict[str, Any], tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path, kind, **config)
    assert_same(tmp_path)


@pytest.mark.parametrize("with_decoder", [True, False])
def test_special_tokens_map(with_decoder: bool, tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"400": token("<extra>")}} if with_decoder else {}
    save_tiny_tokenizer(tmp_path, "byte_level", eos_token="<|im_end|>", bos_token="<|im_start|>", **config)
    tokens = {"eos_token": token("<|endoftext|>"), "bos_token": "<|im_start|>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens))
    assert_same(tmp_path)


def test_without_any_config_file(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = tokenizer_from_folder(tmp_path, eos_token_ids=[2])
    assert tokenizer.encode("the") == byte_level().encode("the").ids
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.special_tokens == {}


@pytest.mark.parametrize(
    ("written", "read"), [(2048, 2048), (1e30, None), (10**30, None), (None, None), (4096.0, 4096)]
)
def test_max_length(written: Any, read: int | None, tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path, model_max_length=written)
    assert tokenizer_from_folder(tmp_path).max_length == read


def save_legacy(folder: Path, **config: Any) -> None:
    byte_level().model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "GPT2Tokenizer"},
        {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True},
        {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True},
        {"tokenizer_class": "Qwen2Tokenizer"},
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "added_tokens_decoder": {"1": token("<|im_start|>"), "2": token("<|im_end|>")},
        },
    ],
)
def test_vocab_and_merges_equal_transformers(config: dict[str, Any], tmp_path: Path) -> None:
    save_legacy(tmp_path, **config)
    oracle = transformers_tokenizer(tmp_path)
    mine = tokenizer_from_folder(tmp_path)
    for text in [*LINES, *ODD_TEXTS]:
        assert mine.encode(text) == oracle.encode(text), text
    assert mine.eos_token_id == oracle.eos_token_id
    assert mine.bos_token_id == oracle.bos_token_id


def test_legacy_added_tokens_keep_their_ids(tmp_path: Path) -> None:
    save_legacy(tmp_path, tokenizer_class="GPT2Tokenizer")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<b>": 401, "<a>": 400}))
    assert tokenizer_from_folder(tmp_path).encode("<a><b>") == [400, 401]


class TestChatTemplates:
    def test_from_the_config(self, tmp_path: Path) -> None:
        save_tiny_tokenizer(tmp_path)
        assert tokenizer_from_folder(tmp_path).chat_template == CHATML
        save_tiny_tokenizer(tmp_path, chat_template=None)
        assert tokenizer_from_folder(tmp_path).chat_template is None

    def test_named(self, tmp_path: Path) -> None:
        templates = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
        save_tiny_tokenizer(tmp_path, chat_template=None)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": templates}))
        assert tokenizer_from_folder(tmp_path).chat_template == {"default": "a", "tool_use": "b"}
        assert transformers_tokenizer(tmp_path).chat_template == {"default": "a", "tool_use": "b"}

    def test_files_come_first(self, tmp_path: Path) -> None:
        save_tiny_tokenizer(tmp_path)
        (tmp_path / "chat_template.jinja").write_text("from a file é", encoding="utf-8")
        assert tokenizer_from_folder(tmp_path).chat_template == "from a file é"
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("for rag")
        named = {"default": "from a file é", "rag": "for rag"}
        assert tokenizer_from_folder(tmp_path).chat_template == named
        assert transformers_tokenizer(tmp_path).chat_template == named


class TestBadFolders:
    def test_empty(self, tmp_path: Path) -> None:
        with pytest.raises(LoadError, match=r"tokenizer\.json is missing"):
            tokenizer_from_folder(tmp_path)

    def test_sentencepiece_only(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.model").write_bytes(b"x")
        with pytest.raises(UnsupportedError, match="convert it"):
            tokenizer_from_folder(tmp_path)

    @pytest.mark.parametrize("text", ["", "{", '{"version": "1.0"}', "\x80"])
    def test_damaged_tokenizer(self, text: str, tmp_path: Path) -> None:
        save_tiny_tokenizer(tmp_path)
        (tmp_path / "tokenizer.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(LoadError, match=r"tokenizer\.json"):
            tokenizer_from_folder(tmp_path)

    @pytest.mark.parametrize("text", ["", "{", "[]", "\x80"])
    @pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
    def test_damaged_config(self, name: str, text: str, tmp_path: Path) -> None:
        save_tiny_tokenizer(tmp_path)
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        with pytest.raises(LoadError, match=name):
            tokenizer_from_folder(tmp_path)

    def test_merges_of_another_vocabulary(self, tmp_path: Path) -> None:
        save_legacy(tmp_path)
        (tmp_path / "merges.txt").write_text("#version: 0.2\nqq qq\n")
        with pytest.raises(LoadError, match=r"merges\.txt does not fit"):
            tokenizer_from_folder(tmp_path)

    def test_missing_merges(self, tmp_path: Path) -> None:
        save_legacy(tmp_path)
        (tmp_path / "merges.txt").unlink()
        with pytest.raises(LoadError, match=r"merges\.txt"):
            tokenizer_from_folder(tmp_path)

    def test_unknown_class(self, tmp_path: Path) -> None:
        save_legacy(tmp_path, tokenizer_class="CLIPTokenizer")
        with pytest.raises(UnsupportedError, match="CLIPTokenizer"):
            tokenizer_from_folder(tmp_path)


def test_the_tiny_tokenizers_are_reproducible(tmp_path: Path) -> None:
    for kind in ("byte_level", "byte_fallback"):
        tokenizer = save_tiny_tokenizer(tmp_path, kind)
        assert tokenizer.get_vocab_size() == 400
        assert (
            Tokenizer.from_file(str(tmp_path / "tokenizer.json")).to_str()
            == save_tiny_tokenizer(tmp_path, kind).to_str()
        )
