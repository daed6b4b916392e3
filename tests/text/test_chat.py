"""Templates render as transformers' `apply_chat_template` does."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.core.errors import InputError
from motet.text.chat import compile_template
from motet.text.tokenizer import Tokenizer
from tests.tokenizers_tiny import CHATML, INST, byte_level

SPECIAL = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}

TOOLS = """{%- set ns = namespace(seen=0, last='') -%}
{%- if tools %}
    {{- '<|im_start|>system\\n' + messages[0].content|default('') }}
    {% for tool in tools %}
        {{ tool | tojson(indent=2) }}
        {{ tool | tojson }}
    {% endfor %}
{%- endif %}
{% for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {% set ns.seen = ns.seen + 1 %}
    {%- if ns.seen > 3 %}{% break %}{% endif %}
<|im_start|>{{ message.role }}: {{ message.content | trim }}
    {%- for call in message.tool_calls or [] %}
        {{- call.function.name }}({{ call.function.arguments | tojson(sort_keys=true, separators=(',', ':')) }})
    {%- endfor %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

PARTS = """{%- macro show(content) -%}
{%- if content is string %}{{ content }}{% else %}
{%- for part in content %}{% if part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}{% endfor %}
{%- endif %}{%- endmacro -%}
{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ show(message['content']) }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}[model]{% endif %}"""

GENERATION = """{% for message in messages %}{% if message.role == 'assistant' %}
{% generation %}{{ message.content + eos_token }}{% endgeneration %}
{%- else %}{{ message.role }}: {{ message.content }}{{ documents and documents[0].title }}
{% endif %}{% endfor %}"""

REASONING = """{% for m in messages %}{{ m.role }}|{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.content is defined }}
{% endfor %}"""

TEMPLATES = {
    "chatml": CHATML,
    "inst": INST,
    "tools": TOOLS,
    "parts": PARTS,
    "generation": GENERATION,
    "reasoning": REASONING,
}

words = st.text(st.sampled_from(" \n<>&'\"é日{}%ab"), max_size=8)
chats = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": words}), min_size=1, max_size=4
)
TOOL = {"type": "function", "function": {"name": "größe", "parameters": {"type": "object", "note": "<a & 'b'>"}}}


@cache
def oracle() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level(), **SPECIAL)


def mine(template: str, chat: list[dict[str, Any]], **options: Any) -> str:
    return Tokenizer(byte_level(), SPECIAL, chat_template=template).apply_chat_template(chat, **options)


def theirs(template: str, chat: list[dict[str, Any]], **options: Any) -> str:
    text: str = oracle().apply_chat_template(chat, chat_template=template, tokenize=False, **options)
    return text


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(chat=chats, generate=st.booleans(), tools=st.sampled_from([None, [TOOL], [TOOL, TOOL]]))
def test_equals_transformers(name: str, chat: list[dict[str, Any]], generate: bool, tools: Any) -> None:
    options = {"add_generation_prompt": generate, "tools": tools, "documents": [{"title": "t", "text": "x"}]}
    assert mine(TEMPLATES[name], chat, **options) == theirs(TEMPLATES[name], chat, **options)


@pytest.mark.parametrize("name", ["chatml", "inst", "tools", "parts", "generation"])
@settings(max_examples=60, deadline=None)
@given(chat=chats)
def test_continued_message_equals_transformers(name: str, chat: list[dict[str, Any]]) -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    try:
        expected = theirs(TEMPLATES[name], chat, **options)
    except ValueError:
        with pytest.raises(InputError, match="continue_final_message"):
            mine(TEMPLATES[name], chat, **options)
        return
    assert mine(TEMPLATES[name], chat, **options) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(words, min_size=1, max_size=3))
def test_parts_are_passed_to_a_template_that_loops_over_them(texts: list[str]) -> None:
    chat = [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert mine(PARTS, chat) == theirs(PARTS, chat, add_generation_prompt=True)
    assert mine(PARTS, chat, **options) == theirs(PARTS, chat, **options)


def test_parts_are_joined_for_a_template_that_wants_a_string() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}, "three"]
    chat = [{"role": "user", "content": parts}]
    assert mine(CHATML, chat) == mine(CHATML, [{"role": "user", "content": "one\ntwo\nthree"}])


@pytest.mark.parametrize(
    ("template", "iterates"),
    [
        (CHATML, False),
        (INST, False),
        (TOOLS, False),
        (PARTS, True),
        ("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m['content'] | list %}{{ c.text }}{% endfor %}{% endfor %}", True),
        ("{% set c = messages[0]['content'] %}{% set d = c %}{% for p in d %}{{ p.text }}{% endfor %}", True),
        ("{% set c = messages[0]['role'] %}{% for p in c %}{{ p }}{% endfor %}", False),
    ],
)
def test_whether_a_template_loops_over_content(template: str, iterates: bool) -> None:
    assert compile_template(template).iterates_content == iterates


def test_strings_become_parts_for_a_template_that_only_loops() -> None:
    template = "{% for m in messages %}{% for c in m.content %}{{ c.type }}={{ c.text }}{% endfor %}{% endfor %}"
    assert mine(template, [{"role": "user", "content": "hi"}]) == "text=hi"


def test_tool_call_arguments_as_json_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": "é"}'}}
    assert 'f({"a":"é","b":1})' in mine(TOOLS, [{"role": "assistant", "content": "x", "tool_calls": [call]}])


def test_the_clients_messages_stay_as_they_are() -> None:
    part = {"type": "text", "text": "x"}
    chat = [{"role": "user", "content": [part], "name": None}]
    mine(PARTS, chat, add_generation_prompt=False, continue_final_message=True)
    assert chat == [{"role": "user", "content": [{"type": "text", "text": "x"}], "name": None}]


def test_strftime_now() -> None:
    assert mine("{{ strftime_now('%Y') | length }}", [{"role": "user", "content": "x"}]) == "4"


def test_templates_are_compiled_once() -> None:
    assert compile_template(CHATML) is compile_template(CHATML)


USER = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("template", "chat", "options", "message"),
    [
        (INST, [{"role": "system", "content": "x"}], {}, "Only user and assistant roles are supported"),
        ("{% if %}", USER, {}, "not valid jinja2: line 1"),
        ("{{ messages[0].content + 1 }}", USER, {}, "chat template failed"),
        ("{{ messages[0].missing.deep }}", USER, {}, "chat template failed"),
        ("{{ messages.append(1) }}", USER, {}, "chat template failed"),
        ("{{ ''.__class__.__mro__ }}", USER, {}, "chat template failed"),
        (CHATML, [], {}, "messages is empty"),
        (CHATML, "hello", {}, "messages must be a list"),
        (CHATML, {"role": "user"}, {}, "messages must be a list"),
        (CHATML, ["hello"], {}, r"messages\[0\] must be a dict"),
        (CHATML, [*USER, {"content": "x"}], {}, r"messages\[1\] needs a role"),
        (CHATML, [{"role": "user", "content": 5}], {}, "content must be text"),
        (CHATML, [{"role": "user", "content": [5]}], {}, "content part must be a dict"),
        (CHATML, [{"role": "user", "content": [{"type": "text"}]}], {}, "needs a string under 'text'"),
        (PARTS, [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], {}, "'image_url'"),
        (PARTS, [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], {}, "'input_audio'"),
        (CHATML, [{"role": "user", "content": "x", "tool_calls": ["f"]}], {}, "tool call must be a dict"),
        (CHATML, USER, {"tools": [print]}, "tools must be a list of dicts"),
        (CHATML, USER, {"documents": ["x"]}, "documents must be a list of dicts"),
        (CHATML, USER, {"continue_final_message": True}, "exclude each other"),
        (
            "{{ messages[0].content }}",
            [*USER, *USER],
            {"continue_final_message": True, "add_generation_prompt": False},
            "drops or changes",
        ),
        (
            PARTS,
            [{"role": "assistant", "content": []}],
            {"continue_final_message": True, "add_generation_prompt": False},
            "no text to continue",
        ),
    ],
)
def test_bad_input(template: str, chat: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mine(template, chat, **options)
