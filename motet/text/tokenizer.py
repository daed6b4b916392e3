"""Text to token ids and back, with the facts that the engine needs about a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from motet.core.errors import InputError
from motet.text.chat import ChatTemplate, compile_template
from motet.text.token_bytes import make_token_bytes

Template = str | Mapping[str, str]


class Tokenizer:
    """A `tokenizers.Tokenizer` and what surrounds it; immutable, safe to share between threads.

    special_tokens: the named ones ("bos_token" -> "<s>", ...); chat templates can read them.
    eos_token_ids: every id that ends an answer; the tokenizer's own EOS is always one of them.
    chat_template: one template, or several by name ("default", "tool_use").
    max_length: the context length that the tokenizer's files claim, if any.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_template: Template | None = None,
        max_length: int | None = None,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self.max_length = max_length
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self.pad_token_id = self._named_id("pad_token")
        own_eos = () if self.eos_token_id is None else (self.eos_token_id,)
        self.eos_token_ids = frozenset([*own_eos, *eos_token_ids])
        self.adds_bos = self.bos_token_id is not None and self.bos_token_id in backend.encode("").ids[:1]
        self.token_bytes = make_token_bytes(backend)

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @property
    def pad_token(self) -> str | None:
        return self.special_tokens.get("pad_token")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written in it are recognised.

        With `add_special_tokens` the tokenizer's own BOS and EOS rules apply, except that a text which begins with
        BOS (an already templated prompt) does not get a second one. Raises InputError for text that is not Unicode.
        """
        try:
            ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeError) as error:
            raise InputError(f"the prompt is not valid Unicode text: {error}; lone surrogates must go") from None
        if add_special_tokens and self.adds_bos and ids[:2] == [self.bos_token_id] * 2:
            return ids[1:]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`. Ids without a token are empty; bytes that are not valid UTF-8 become U+FFFD."""
        if self.token_bytes is None:
            return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        kept = (token_id for token_id in ids if token_id not in self.special_ids) if skip_special_tokens else ids
        return self.token_bytes.join(kept).decode("utf-8", errors="replace")

    def token_text(self, token_id: int) -> str:
        """The text of one token wherever it stands: special tokens are shown and a leading space is kept."""
        if self.token_bytes is None:
            return self.backend.decode([token_id], skip_special_tokens=False)
        return self.token_bytes[token_id].decode("utf-8", errors="replace")

    def bad_word_ids(self, word: str) -> list[list[int]]:
        """The token sequences that spell `word` at the start of a text and, if that is another one, after a space.

        The second sequence counts only when the space changes the first token and not the length (vLLM's rule):
        otherwise it would forbid the space token itself. Raises InputError for an empty word.
        """
        word = word.lstrip()
        plain = self.encode(word, add_special_tokens=False)
        if not plain:
            raise InputError("bad_words has an empty word; leave it out")
        spaced = self.encode(" " + word, add_special_tokens=False)
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            return [plain, spaced]
        return [plain]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt text of a conversation.

        `chat_template` is a template's text or the name of one of the tokenizer's templates; `kwargs` are further
        variables of the template. Raises InputError for messages or options that the template cannot render.
        """
        template = self._template(chat_template, has_tools=bool(tools))
        return template.render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables={**self.special_tokens, **kwargs},
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation; options as for `apply_chat_template`. BOS is the template's business."""
        return self.encode(self.apply_chat_template(messages, **options), add_special_tokens=False)

    def _template(self, chosen: str | None, has_tools: bool) -> ChatTemplate:
        own = self.chat_template
        named = own if isinstance(own, Mapping) else {} if own is None else {"default": own}
        if chosen is not None:
            return compile_template(named.get(chosen, chosen))
        if not named:
            raise InputError("this model has no chat template; pass chat_template, or a prompt instead of messages")
        if has_tools and "tool_use" in named:
            return compile_template(named["tool_use"])
        if "default" not in named:
            names = ", ".join(sorted(named))
            raise InputError(f"this model has no default chat template; pass chat_template, one of: {names}")
        return compile_template(named["default"])
