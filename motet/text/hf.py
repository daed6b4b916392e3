"""A tokenizer from a Hugging Face folder.

tokenizer.json defines the encoding, its BOS and EOS rules included (add_bos_token of tokenizer_config.json counts only
for folders without it, as in transformers 5). tokenizer_config.json and special_tokens_map.json name the special
tokens; chat templates come from chat_template.jinja and additional_chat_templates/, else from tokenizer_config.json.
A folder with vocab.json and merges.txt alone is read as byte-level BPE.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from motet.core.errors import LoadError, UnsupportedError
from motet.text.bos_eos import bos_eos_processor
from motet.text.pretokenizers import QWEN2
from motet.text.tokenizer import Template, Tokenizer

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
UNLIMITED = 1 << 31  # tokenizers without a limit write 1e30
END_OF_TEXT = "<|endoftext|>"
GPT2_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend", "")
QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")


def tokenizer_from_folder(folder: str | Path, eos_token_ids: Iterable[int] = ()) -> Tokenizer:
    """`eos_token_ids`: further ids that end an answer, from the model's generation_config.

    Raises LoadError for a missing or damaged file, and UnsupportedError for a format that must be converted first.
    """
    folder = Path(folder)
    config = _read_json(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").is_file():
        backend = _read_backend(folder / "tokenizer.json")
        special = _named_tokens(folder, config, {})
        _add_tokens(backend, config, special)
    else:
        backend, defaults = _legacy_backend(folder, config)
        special = _named_tokens(folder, config, defaults)
        _add_tokens(backend, config, special, _read_json(folder / "added_tokens.json"))
        _add_legacy_post_processor(backend, config, special)
    max_length = config.get("model_max_length")
    return Tokenizer(
        backend,
        special_tokens=special,
        eos_token_ids=eos_token_ids,
        chat_template=_chat_template(folder, config),
        max_length=int(max_length) if isinstance(max_length, (int, float)) and max_length < UNLIMITED else None,
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise LoadError(f"cannot read {path}: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    """An object; empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise LoadError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise LoadError(f"{path} is damaged: it must hold a JSON object")
    return value


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise LoadError(f"{path} is damaged or not a tokenizer: {error}") from None


def _content(token: Any) -> str | None:
    """The text of a token that is written as a string or as an AddedToken's fields; None for anything else."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _named_tokens(folder: Path, config: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, str]:
    """Every `*_token` that names a token: the seven common names, then the model's own."""
    extra = config.get("extra_special_tokens")
    own = dict(extra) if isinstance(extra, Mapping) else {}
    file_map = _read_json(folder / "special_tokens_map.json")
    if "added_tokens_decoder" in config:  # such a config is complete: the map only fills gaps
        merged = {**defaults, **file_map, **own, **config}
    else:
        merged = {**defaults, **own, **config, **file_map}
    names = [*NAMED_TOKENS, *(name for name in merged if name.endswith("_token") and name not in NAMED_TOKENS)]
    return {name: token for name in names if (token := _content(merged.get(name))) is not None}


def _add_tokens(
    backend: tokenizers.Tokenizer,
    config: Mapping[str, Any],
    special: Mapping[str, str],
    legacy_ids: Mapping[str, int] | None = None,
) -> None:
    """Add what the config files know and the backend does not, in the order of transformers (it decides new ids)."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    wanted: dict[str, AddedToken] = {}
    for name, _ in sorted((legacy_ids or {}).items(), key=lambda item: item[1]):
        wanted[name] = AddedToken(name, special=False, normalized=True)
    for _, fields in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        if (content := _content(fields)) is not None:
            wanted[content] = _added_token(content, fields)
    for name in special.values():
        wanted.setdefault(name, AddedToken(name, special=True)).special = True
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    extras = [_content(item) for item in (extra.values() if isinstance(extra, Mapping) else extra)]
    for content in extras:
        if content is not None:
            wanted.setdefault(content, AddedToken(content, special=True))
    backend.add_tokens([token for name, token in wanted.items() if name not in known])


def _added_token(content: str, fields: Any) -> AddedToken:
    flags = {key: bool(fields[key]) for key in ("single_word", "lstrip", "rstrip", "normalized") if key in fields}
    return AddedToken(content, special=bool(fields.get("special", False)), **flags)


def _legacy_backend(folder: Path, config: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """Byte-level BPE from vocab.json and merges.txt, and the special tokens that its class has by default."""
    vocab_path, merges_path = folder / "vocab.json", folder / "merges.txt"
    if not (vocab_path.is_file() and merges_path.is_file()):
        _raise_missing(folder)
    vocab = _read_json(vocab_path)
    lines = (line for line in _read_text(merges_path).splitlines() if line and not line.startswith("#version"))
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    except Exception as error:  # the library raises bare Exception
        raise LoadError(f"{merges_path} does not fit {vocab_path}: {error}") from None
    backend.decoder = decoders.ByteLevel()
    name = config.get("tokenizer_class") or ""
    if name in QWEN2_CLASSES:
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = QWEN2.pre_tokenizer()
        return backend, {"eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT}
    if name not in GPT2_CLASSES:
        raise UnsupportedError(
            f"{folder} has no tokenizer.json and its tokenizer_class {name!r} is not known without one; convert it "
            "with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space", False)))
    return backend, {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT}


def _raise_missing(folder: Path) -> None:
    if (folder / "tokenizer.model").is_file():
        raise UnsupportedError(
            f"{folder} has only a SentencePiece tokenizer.model; convert it with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    raise LoadError(f"{folder} has no tokenizer: tokenizer.json is missing, and so are vocab.json and merges.txt")


def _add_legacy_post_processor(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]
) -> None:
    bos = special.get("bos_token") if config.get("add_bos_token") else None
    eos = special.get("eos_token") if config.get("add_eos_token") else None
    ids = [(token, token_id) for token in (bos, eos) if token and (token_id := backend.token_to_id(token)) is not None]
    if ids:
        backend.post_processor = bos_eos_processor(bos, eos, ids)


def _chat_template(folder: Path, config: Mapping[str, Any]) -> Template | None:
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        named = {name: _read_text(path) for name, path in files.items()}
        return named["default"] if len(named) == 1 and "default" in named else named
    template = config.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    return template or None
