"""The tokenizer of a model, from whatever its checkpoint has."""

from __future__ import annotations

from motet.core.config import ModelConfig
from motet.models.checkpoint import Checkpoint, locate
from motet.models.gguf import GGUFFile
from motet.text.gguf import tokenizer_from_gguf
from motet.text.hf import tokenizer_from_folder
from motet.text.tokenizer import Tokenizer


def load_tokenizer(checkpoint: Checkpoint, config: ModelConfig) -> Tokenizer:
    """The `tokenizer` option's (a folder, GGUF file or hub id), else the checkpoint's own. Raises LoadError."""
    if config.tokenizer is not None:
        path = locate(config.tokenizer, config.revision)
        return tokenizer_from_folder(path) if path.is_dir() else tokenizer_from_gguf(GGUFFile(path).metadata)
    if checkpoint.gguf is not None:
        return tokenizer_from_gguf(checkpoint.gguf.metadata)
    assert checkpoint.folder is not None
    return tokenizer_from_folder(checkpoint.folder)
