"""From what a user types to what the engine takes: chat templates and sampling defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from motet.core.errors import InputError, LoadError
from motet.core.params import SamplingParams

if TYPE_CHECKING:
    from motet.engine.engine import Engine
    from motet.engine.inputs import Prompt
    from motet.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]

# For models that recommend nothing: varied, and still readable from a small model.
FALLBACK_TEMPERATURE, FALLBACK_TOP_P = 0.7, 0.9


@dataclass(frozen=True)
class PromptStyle:
    """raw: a text is continued as it is; else it becomes a user's message where the model has a chat template
    system: the system message of every conversation that does not bring its own
    chat_template: a template's text, instead of the model's
    """

    raw: bool = False
    system: str | None = None
    chat_template: str | None = None


@dataclass(frozen=True)
class PromptMaker:
    """Builds prompts for one model."""

    tokenizer: Tokenizer | None
    style: PromptStyle

    @property
    def has_template(self) -> bool:
        return self.tokenizer is not None and bool(self.style.chat_template or self.tokenizer.chat_template)

    def from_text(self, text: str) -> Prompt:
        if not self.style.raw and self.has_template:
            if not text:
                raise InputError("the prompt is empty; give at least one character")
            return self.from_messages([{"role": "user", "content": text}])
        if self.style.system is not None:
            raise InputError(
                "a system message needs a chat template, which this model does not have or --raw leaves out"
            )
        return text

    def from_messages(self, messages: Messages) -> Prompt:
        """Raises InputError for messages that the template refuses."""
        if self.tokenizer is None:
            raise InputError("messages need a tokenizer, but the engine runs with skip_tokenizer_init")
        if self.style.system is not None and not any(message.get("role") == "system" for message in messages):
            messages = [{"role": "system", "content": self.style.system}, *messages]
        text = self.tokenizer.apply_chat_template(messages, chat_template=self.style.chat_template)
        # The template writes BOS itself where the model wants one.
        return {"prompt": text, "prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)}


def read_template(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"cannot read the chat template {file!r}: {error}") from None


def sampling_defaults(engine: Engine, given: Mapping[str, Any]) -> SamplingParams:
    """What was given, over what the model recommends, over what suits a terminal. Raises InputError."""
    own = engine.default_params
    recommends_nothing = own == SamplingParams() and engine.config.model.generation_config == "auto"
    fallback = {"temperature": FALLBACK_TEMPERATURE, "top_p": FALLBACK_TOP_P} if recommends_nothing else {}
    return own.clone(**{**fallback, **given})


def with_changes(params: SamplingParams, changes: Mapping[str, Any]) -> SamplingParams:
    """`params` with fields that came from a file: names and types are checked. Raises InputError."""
    for name in changes:
        if name not in params.__struct_fields__:
            close = get_close_matches(name, params.__struct_fields__, n=1)
            raise InputError(f"unknown key {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    try:
        own = msgspec.to_builtins(params, str_keys=True)  # in JSON the keys of logit_bias are strings
        return msgspec.convert({**own, **changes}, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        raise InputError(str(error)) from None
