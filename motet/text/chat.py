"""Chat templates: jinja2 in a sandbox, with the helpers that Hugging Face templates use.

Rendering equals transformers' `apply_chat_template(tokenize=False)` for text conversations. Beyond it, text parts are
joined for templates that want a string, strings become parts for templates that only iterate, and tool-call arguments
that came as JSON text are given to the template as objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from motet.core.errors import InputError
from motet.text.messages import Message, prepare_messages

# Marks where the final message ends. The trailing space tells whether the template trims what it is given.
CUT = "\ue000final-message-ends-here\ue000"
CUT_SPACED = CUT + " "


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks an assistant's words for training; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class ChatTemplate:
    """A compiled template. `iterates_content`: it loops over a message's parts; `tests_string`: also takes strings."""

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(f"the chat template is not valid jinja2: line {error.lineno}: {error.message}") from None
        self.iterates_content = _iterates_content(tree)
        self.tests_string = any(test.name == "string" for test in tree.find_all(nodes.Test))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Raises InputError with the template's own words when it refuses the conversation."""
        if continue_final_message and add_generation_prompt:
            raise InputError("continue_final_message and add_generation_prompt exclude each other; set one to False")
        prepared = prepare_messages(messages, self.iterates_content, self.tests_string)
        values = {
            **variables,
            "messages": prepared,
            "tools": _check_dicts("tools", tools),
            "documents": _check_dicts("documents", documents),
            "add_generation_prompt": add_generation_prompt,
        }
        if not continue_final_message:
            return self._render(values)
        final_text = _open_final_message(prepared)
        return _cut_at_mark(self._render(values), final_text)

    def _render(self, values: Mapping[str, Any]) -> str:
        try:
            return self._template.render(values)
        except Exception as error:  # a template is foreign code: whatever it raises is this request's error
            raise InputError(f"the chat template failed: {error or type(error).__name__}") from error


@lru_cache(maxsize=64)
def compile_template(source: str) -> ChatTemplate:
    return ChatTemplate(source)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _check_dicts(name: str, values: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    if not values:
        return None
    for value in values:
        if not isinstance(value, Mapping):
            raise InputError(f"{name} must be a list of dicts (JSON objects), got {type(value).__name__}")
    return list(values)


def _open_final_message(messages: list[Message]) -> str:
    """Append the mark to the last text of the last message; returns that text."""
    final = messages[-1]
    content = final.get("content")
    if isinstance(content, str):
        final["content"] = content + CUT_SPACED
        return content
    for part in reversed(content or []):
        if "text" in part:
            text: str = part["text"]
            part["text"] = text + CUT_SPACED
            return text
    raise InputError("continue_final_message is set but the final message has no text to continue")


def _cut_at_mark(rendered: str, final_text: str) -> str:
    where = rendered.rfind(CUT)
    if where < 0 or final_text.strip() not in rendered:
        raise InputError(
            "continue_final_message is set but the chat template drops or changes the final message; "
            "check the role of the final message and the template"
        )
    kept = rendered[:where]
    return kept if rendered.startswith(CUT_SPACED, where) else kept.rstrip()


def _iterates_content(tree: nodes.Template) -> bool:
    """Whether a loop runs over `message.content`, directly or through a variable or a macro's argument."""
    names = {"content"} & {arg.name for macro in tree.find_all(nodes.Macro) for arg in macro.args}
    grew = True
    while grew:
        size = len(names)
        for assign in tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names):
                names.add(assign.target.name)
        grew = len(names) > size
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _is_content(expression: nodes.Node, names: set[str]) -> bool:
    """Whether this is a message's content: `x.content`, `x["content"]`, a name bound to one; filtered or not."""
    while isinstance(expression, nodes.Filter) and expression.node is not None:
        expression = expression.node
    if isinstance(expression, nodes.Getattr):
        return expression.attr == "content"
    if isinstance(expression, nodes.Getitem):
        return isinstance(expression.arg, nodes.Const) and expression.arg.value == "content"
    return isinstance(expression, nodes.Name) and expression.name in names
