"""How byte-level BPE vocabularies cut text into words before merging, by the name that GGUF files give it.

The patterns are those that the models were trained with (their tokenizer.json); names as llama.cpp writes them into
`tokenizer.ggml.pre`.
"""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from motet.core.errors import UnsupportedError

GPT2_WORD = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED_WORD = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{suffix}"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{suffix}"
)
CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class Cut(NamedTuple):
    """`patterns` are applied one after the other, each to what the ones before left.

    ignore_merges: a word that is a token is taken whole. adds_bos: what holds when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        splits = [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2 = Cut((GPT2_WORD,))
DIGITS_GPT2 = Cut((r"\p{N}", GPT2_WORD))
LLAMA3 = Cut((rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}",))
LLAMA3_BOS = LLAMA3._replace(ignore_merges=True, adds_bos=True)
QWEN2 = Cut((rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}",))
QWEN35 = Cut(
    (
        rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
TEKKEN = Cut((CASED_WORD.replace("{suffix}", "") + rf"|\p{{N}}|{CASED_REST}",), ignore_merges=True, adds_bos=True)
GPT4O = Cut((CASED_WORD.replace("{suffix}", CONTRACTION + "?") + rf"|\p{{N}}{{1,3}}|{CASED_REST}",))
BLOOM = Cut((r" ?[^(\s|[.,!?…。，、।۔،])]+",))
FALCON = Cut((r"[\p{P}\$\+<=>\^~\|`]+", GPT2_WORD, r"[0-9][0-9][0-9]"))
DEEPSEEK_CODER = Cut((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"))
DEFAULT = Cut((r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORD, r"\p{N}+", r"[0-9][0-9][0-9]"))

CUTS: dict[str, Cut] = {
    "default": DEFAULT,
    "falcon": FALCON,
    **dict.fromkeys(("gpt-2", "olmo", "phi-2", "mpt", "jais", "exaone4", "gigachat", "mellum"), GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), DIGITS_GPT2
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), LLAMA3_BOS),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2"), QWEN2),
    "qwen35": QWEN35,
    "tekken": TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), GPT4O),
    **dict.fromkeys(("bloom", "gpt3-finnish"), BLOOM),
    "deepseek-coder": DEEPSEEK_CODER,
}


def find_cut(name: str) -> Cut:
    """Raises UnsupportedError for a name that is not in the table."""
    if name not in CUTS:
        known = ", ".join(sorted(CUTS))
        raise UnsupportedError(f"the GGUF file's pre-tokenizer {name!r} is not supported; supported: {known}")
    return CUTS[name]
