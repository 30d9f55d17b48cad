"""Chat templates render as in transformers."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import TemplateError
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from ebbtide.tokenization.chat_template import ChatTemplate

USER = {"role": "user", "content": "  größer <b> & 'x' "}
ANSWER = {"role": "assistant", "content": " The tide ", "reasoning_content": "why", "tool_calls": None}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"ü": [1, 2.5]}}}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "b": 1, "a": "<é>"}}}
PLAIN = (
    "{{ bos_token }}{% for m in messages %}\n    {% if loop.first %}[{% endif %}<|{{ m.role }}|>{{ m.content | trim }}"
    "{% if m.thinking %}({{ m.thinking }}, {{ m.reasoning_content }}){% endif %}{% if 'tool_calls' in m %}calls"
    "{% endif %}\n{% endfor %}{% if tools %}{{ tools | tojson }}{{ tools | tojson(indent=2) }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEMPLATES = {
    "plain": PLAIN,
    "without spaces": PLAIN.replace(" | trim", ""),
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "namespace": "{% set ns = namespace(self=1, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}{{ ns.self }}{{ dict(a=1) | tojson }}{{ dict.fromkeys(['k']) | tojson }}{{ messages[-1].content }}",
    "generation": "{% for m in messages %}{% generation %}{% set x = 1 %}{{ m.content }}{% endgeneration %}"
    "{{ x is defined }}{% endfor %}",
    "variables": "{{ shout }}{{ eos_token }}{{ documents is none }}{{ tools is none }}"
    "{{ messages | tojson(sort_keys=true)}}{{ messages[0].content }}",
    "separators": "{{ messages | tojson(separators=(',', ':'), ensure_ascii=true) }}",
}
CHATS: list[list[dict[str, Any]]] = [
    [USER],
    [USER, ANSWER],
    [USER, CALL, USER],
    [{"role": "system", "content": ""}, USER],
]
REFUSED = {
    "exception": "{{ raise_exception('roles must alternate') }}",
    "private name": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "private argument": "{% set ns = namespace(_x=1) %}",
    "change": "{{ messages.append(1) }}",
    "way out": "{{ dict.__class__ }}{{ messages[0].content.__class__.__mro__ }}",
    "syntax": "{% if %}",
}


def reference(template: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, bos_token="<s>", eos_token="</s>")


def both(template: Any, messages: list[dict[str, Any]], **options: Any) -> tuple[str, str]:
    """The texts that ``ChatTemplate`` and transformers render."""
    theirs = reference(template)
    expected = theirs.apply_chat_template(messages, tokenize=False, shout="!", **options)
    tools = options.pop("tools", None)
    variables = {**theirs.special_tokens_map, "shout": "!"}
    return ChatTemplate(template).render(messages, tools, variables, **options), str(expected)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_texts_equal_those_of_transformers(
    template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> None:
    options = {"continue_final_message": False, "tools": tools}
    ours, expected = both(template, messages, add_generation_prompt=True, **options)
    assert ours == expected
    ours, expected = both(template, messages, add_generation_prompt=False, **options)
    assert ours == expected


@pytest.mark.parametrize("name", ["plain", "without spaces", "namespace"])
@pytest.mark.parametrize("messages", [[USER], [USER, ANSWER]])
def test_a_continued_message_ends_where_it_does_in_transformers(name: str, messages: list[dict[str, Any]]) -> None:
    ours, expected = both(TEMPLATES[name], messages, add_generation_prompt=False, continue_final_message=True)
    assert ours == expected


@pytest.mark.parametrize("messages", [[CALL], [], [{"role": "user"}]])
def test_a_chat_without_text_to_continue_is_refused(messages: list[dict[str, Any]]) -> None:
    for template in (PLAIN, "no text", "content"):
        with pytest.raises(ValueError, match=r".+"):
            both(template, messages, add_generation_prompt=False, continue_final_message=True)
        with pytest.raises(ValueError, match=r".+"):
            ChatTemplate(template).render(messages, None, {}, add_generation_prompt=False, continue_final_message=True)


def test_the_template_for_tools_is_used_for_chats_with_tools() -> None:
    named = {"default": "plain", "tool_use": "tools"}
    for tools, text in ((None, "plain"), ([TOOL], "tools")):
        ours, expected = both(named, [USER], tools=tools, add_generation_prompt=True, continue_final_message=False)
        assert ours == expected == text
    with pytest.raises(ValueError, match="no default chat template"):
        ChatTemplate({"other": "x"}).render([USER], None, {}, add_generation_prompt=True, continue_final_message=False)


@pytest.mark.parametrize("template", REFUSED.values(), ids=REFUSED)
def test_templates_cannot_leave_the_sandbox(template: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(template).render([USER], None, {}, add_generation_prompt=True, continue_final_message=False)


def test_the_clients_messages_are_not_changed() -> None:
    messages: list[dict[str, Any]] = [dict(USER), dict(ANSWER)]
    ChatTemplate(PLAIN).render(messages, None, {}, add_generation_prompt=False, continue_final_message=True)
    assert messages == [USER, ANSWER]
