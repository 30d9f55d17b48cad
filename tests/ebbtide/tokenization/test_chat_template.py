"""Chat templates render as in transformers."""

from __future__ import annotations

from typing import Any

import jinja2
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


# One use of every filter of jinja, except those in UNPREDICTABLE. x: a list of dicts.
FILTERS = {
    "abs": "{{ -3 | abs }}",
    "attr": "{{ 'a' | attr('nothing') is defined }}",
    "batch": "{% for row in 'abcde' | batch(2, '-') %}{{ row | join(',') }};{% endfor %}",
    "capitalize": "{{ 'tIDE' | capitalize }}",
    "center": "[{{ 'a' | center(6) }}]",
    "count": "{{ 'abc' | count }}",
    "d": "{{ nothing | d('x') }}",
    "default": "{{ '' | default('x', true) }}",
    "dictsort": "{{ {'b': 1, 'a': 2} | dictsort }}",
    "e": "{{ '<' | e }}",
    "escape": "{{ '<&>' | escape }}",
    "filesizeformat": "{{ 12345 | filesizeformat }}",
    "first": "{{ 'abc' | first }}",
    "float": "{{ '1.5' | float }}",
    "forceescape": "{{ '<' | forceescape }}",
    "format": "{{ '%s-%d' | format('a', 2) }}",
    "groupby": "{% for key, group in x | groupby('k') %}{{ key }}{{ group | length }}{% endfor %}",
    "indent": "{{ 'a\nb' | indent(2, first=true) }}",
    "int": "{{ '12' | int }}",
    "items": "{% for key, value in {'a': 1} | items %}{{ key }}{{ value }}{% endfor %}",
    "join": "{{ x | join('+', attribute='k') }}",
    "last": "{{ 'abc' | last }}",
    "length": "{{ x | length }}",
    "list": "{{ 'ab' | list }}",
    "lower": "{{ 'AB' | lower }}",
    "map": "{{ x | map(attribute='k') | list }}",
    "max": "{{ [1, 3, 2] | max }}",
    "min": "{{ [1, 3, 2] | min }}",
    "pprint": "{{ {'a': [1]} | pprint }}",
    "reject": "{{ [1, 2] | reject('odd') | list }}",
    "rejectattr": "{{ x | rejectattr('k', 'equalto', 1) | list }}",
    "replace": "{{ 'aab' | replace('a', 'c', 1) }}",
    "reverse": "{{ 'abc' | reverse }}",
    "round": "{{ 2.567 | round(1, 'floor') }}",
    "safe": "{{ '<' | safe }}",
    "select": "{{ [1, 2] | select('odd') | list }}",
    "selectattr": "{{ x | selectattr('k', 'equalto', 1) | list }}",
    "slice": "{% for column in 'abcde' | slice(2, '-') %}{{ column | join(',') }};{% endfor %}",
    "sort": "{{ ['b', 'A'] | sort(reverse=true) }}",
    "string": "{{ 1 | string }}",
    "striptags": "{{ '<b>a</b>' | striptags }}",
    "sum": "{{ x | sum(attribute='k') }}",
    "title": "{{ 'a tide' | title }}",
    "tojson": "{{ x | tojson }}",
    "trim": "{{ ' a ' | trim }}",
    "truncate": "{{ 'a long text' | truncate(8, true) }}",
    "unique": "{{ [1, 1, 2] | unique | list }}",
    "upper": "{{ 'ab' | upper }}",
    "urlencode": "{{ 'a b/ü' | urlencode }}",
    "urlize": "{{ 'see http://a.b/c' | urlize }}",
    "wordcount": "{{ 'a b c' | wordcount }}",
    "wordwrap": "{{ 'a few long words' | wordwrap(6, wrapstring='|') }}",
    "xmlattr": "{{ {'a': 'b'} | xmlattr }}",
}
UNPREDICTABLE = {"random"}


def test_every_filter_of_jinja_has_an_example() -> None:
    assert FILTERS.keys() | UNPREDICTABLE == jinja2.Environment().filters.keys()


@pytest.mark.parametrize("name", FILTERS)
def test_filters_render_as_in_transformers(name: str) -> None:
    template = "{% set x = [{'k': 1}, {'k': 2}, {'k': 1}] %}" + FILTERS[name]
    rendered = ChatTemplate(template).render([USER], None, {}, add_generation_prompt=True, continue_final_message=False)
    assert rendered == reference(template).apply_chat_template([USER], tokenize=False)
    assert rendered
