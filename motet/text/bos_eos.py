"""BOS before and EOS after a text, as a post-processor of the tokenizers library."""

from __future__ import annotations

from tokenizers.processors import TemplateProcessing


def bos_eos_processor(bos: str | None, eos: str | None, ids: list[tuple[str, int]]) -> TemplateProcessing:
    """`bos` and `eos` are the tokens to add, None for nothing; `ids` lists those two with their ids."""
    single = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    return TemplateProcessing(single=single, special_tokens=list(dict.fromkeys(ids)))
