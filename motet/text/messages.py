"""Messages of a conversation, checked and brought into the shape that a chat template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from motet.core.errors import InputError

Message = dict[str, Any]

TEXT_TYPES = ("text", "input_text", "output_text")
# Names under which clients send a model's reasoning; templates read the first one, and some the second.
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


def prepare_messages(messages: Sequence[Mapping[str, Any]], wants_parts: bool, takes_strings: bool) -> list[Message]:
    """Copies of `messages` for a template that loops over content parts (or not), and that takes strings as well.

    Keys whose value is None are dropped, as if the client had left them out. Raises InputError.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise InputError(f"messages must be a list of dicts with a role and content, got {type(messages).__name__}")
    if not messages:
        raise InputError("messages is empty; give at least one message")
    return [_prepare(index, message, wants_parts, takes_strings) for index, message in enumerate(messages)]


def _prepare(index: int, message: Mapping[str, Any], wants_parts: bool, takes_strings: bool) -> Message:
    if not isinstance(message, Mapping):
        raise InputError(f"messages[{index}] must be a dict with a role and content, got {type(message).__name__}")
    prepared = {key: value for key, value in message.items() if value is not None}
    if not isinstance(prepared.get("role"), str):
        raise InputError(f"messages[{index}] needs a role, such as 'user' or 'assistant'")
    reasoning = next((prepared[name] for name in REASONING_NAMES if name in prepared), None)
    if reasoning is not None:
        prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
    if "content" in prepared:
        prepared["content"] = _content(index, prepared["content"], wants_parts, takes_strings)
    if "tool_calls" in prepared:
        prepared["tool_calls"] = [_tool_call(index, call) for call in prepared["tool_calls"]]
    return prepared


def _content(index: int, content: Any, wants_parts: bool, takes_strings: bool) -> str | list[Message]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if wants_parts and not takes_strings else content
    if not isinstance(content, Sequence):
        kind = type(content).__name__
        raise InputError(f"messages[{index}]: content must be text or a list of text parts, got {kind}")
    parts = [_part(index, part) for part in content]
    return parts if wants_parts else "\n".join(part["text"] for part in parts)


def _part(index: int, part: Any) -> Message:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise InputError(f"messages[{index}]: a content part must be a dict with a type, got {type(part).__name__}")
    kind = part.get("type", "text" if "text" in part else None)
    if kind not in TEXT_TYPES:
        raise InputError(f"messages[{index}]: a content part of type {kind!r} is not supported; send text only")
    if not isinstance(part.get("text"), str):
        raise InputError(f"messages[{index}]: a content part of type {kind!r} needs a string under 'text'")
    return {**part, "type": "text"}


def _tool_call(index: int, call: Any) -> Any:
    """Arguments that are JSON text (as OpenAI's API has them) become objects (as templates want them)."""
    if not isinstance(call, Mapping):
        raise InputError(f"messages[{index}]: a tool call must be a dict, got {type(call).__name__}")
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:  # a model's own broken JSON, sent back: the template shows it as it is
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}
