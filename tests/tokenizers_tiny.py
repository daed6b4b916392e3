"""Tiny tokenizers for tests: about 400 tokens, the same on every machine, no file or network needed.

`byte_level` is the GPT-2, Llama 3 and Qwen kind: no BOS, ChatML control tokens.
`byte_fallback` is the Llama 2 and Gemma kind: BOS is added, a space is written "▁", bytes are tokens `<0xNN>`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

NUM_TOKENS = 400
NUM_CHARACTERS = 80  # in the vocabulary of `byte_fallback`

LINES = (
    "the quick brown fox jumps over the lazy dog while the other dogs are sleeping in the sun",
    "There is nothing either good or bad, but thinking makes it so. What is the question? The answer is here.",
    "for index in range(10): print(index, values[index] * 2.5)  # comment",
    "system user assistant Hello, how are you? I'm fine, thanks; and you?",
    "1234567890 2024-01-31 3.14159 100,000",
    "ein Käfer über dem Fluß, été, señor, naïve, żółć",
    "日本語の文章と漢字、中文字符。 Привет, мир! 😀😃🚀",
)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}"
    "{% endfor %}"
)


def byte_level(num_tokens: int = NUM_TOKENS) -> Tokenizer:
    """Byte-level BPE. Ids 0, 1, 2 are <|endoftext|>, <|im_start|>, <|im_end|>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def byte_fallback(num_tokens: int = NUM_TOKENS, add_space_prefix: bool = True) -> Tokenizer:
    """SentencePiece-like BPE. Ids 0, 1, 2 are <unk>, <s>, </s>; ids 3 to 258 are the bytes; BOS is added."""
    pieces, merges = _train_pieces(num_tokens - 3 - 256)
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocab = {name: token_id for token_id, name in enumerate(names)}
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    escape = normalizers.Replace(" ", "▁")
    unescape = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_space_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), escape])
        tokenizer.decoder = decoders.Sequence([*unescape, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = escape
        tokenizer.decoder = decoders.Sequence(unescape)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names[:3]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def _train_pieces(num_pieces: int) -> tuple[list[str], list[tuple[str, str]]]:
    counts = Counter("".join(LINES))
    common = set(
        sorted(counts, key=lambda char: (-counts[char], char))[:NUM_CHARACTERS]
    )  # the rest falls back to bytes
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=num_pieces, show_progress=False)
    lines = ["".join(char if char in common else " " for char in line) for line in LINES]
    trained.train_from_iterator(lines, trainer)
    model = json.loads(trained.to_str())["model"]
    by_id = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return by_id, [(left, right) for left, right in model["merges"]]


KINDS = {
    "byte_level": (byte_level, {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, CHATML),
    "byte_fallback": (byte_fallback, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, INST),
}


def save_tiny_tokenizer(
    directory: str | Path, kind: str = "byte_level", chat_template: str | None = "default", **config: Any
) -> Tokenizer:
    """Write tokenizer.json and tokenizer_config.json; "default" is the kind's own template, None is no template.

    `config` goes into tokenizer_config.json as it is. Returns the tokenizer. EOS has id 2 in both kinds.
    """
    make, facts, default_template = KINDS[kind]
    tokenizer = make()
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if chat_template is not None:
        facts = {**facts, "chat_template": default_template if chat_template == "default" else chat_template}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, **facts, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")
    return tokenizer
