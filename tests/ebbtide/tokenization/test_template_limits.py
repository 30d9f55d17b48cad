"""A chat template cannot take unbounded time or memory, whatever jinja offers; the texts of other templates stay equal.

tests/ebbtide/tokenization/test_chat_template.py compares the texts with transformers.
"""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.errors import Rejected, StartupError
from ebbtide.tokenization import template_limits
from ebbtide.tokenization.chat_template import ChatTemplate
from ebbtide.tokenization.template_limits import TemplateLimitError, text_size
from ebbtide.tokenization.tokenizer import ChatPrompt, FastTokenizer

from .test_tokenizer import byte_level, fast

TEXT, STEPS = 1 << 16, 50_000  # smaller than those of the daemon, so that the tests are fast
USER = {"role": "user", "content": "hello"}
LONG = '("x" * 60000)'
IN_LOOP = "{% set ns = namespace(v=START) %}{% for i in range(60) %}{% set ns.v = NEXT %}{% endfor %}{{ ns.v }}"
LONG_LOOP = "{% for a in range(9999) %}" + "x" * 1000 + "{% endfor %}"

TOO_MANY_STEPS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops with a counter": "{% for a in range(9999) %}{% for b in range(9999) %}"
    "{{ loop.index if 0 }}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "filters over a range": "{% for a in range(9999) %}{{ range(9999) | map('string') | list | first }}{% endfor %}",
}
TOO_LARGE = {
    "a repeated text": '{{ "x" * 100000000 }}',
    "a repeated text, reversed": '{{ 100000000 * "x" }}',
    "a repeated list": "{% set l = [1] * 100000000 %}",
    "nested repeated lists": '{{ [[["x" * 59999] * 1000] * 1000] * 1000 }}',
    "a power": "{{ 9 ** (9 ** 9) }}",
    "squares": IN_LOOP.replace("START", "3").replace("NEXT", "ns.v * ns.v"),
    "a doubled text": IN_LOOP.replace("START", '"x"').replace("NEXT", "ns.v ~ ns.v"),
    "a doubled sum": IN_LOOP.replace("START", '"x"').replace("NEXT", "ns.v + ns.v"),
    "a doubled list": IN_LOOP.replace("START", "[1]").replace("NEXT", "ns.v + ns.v"),
    "a list in itself twice": IN_LOOP.replace("START", "1").replace("NEXT", "[ns.v, ns.v]"),
    "a tuple in itself twice": IN_LOOP.replace("START", "1").replace("NEXT", "(ns.v, ns.v)"),
    "a dict in itself twice": IN_LOOP.replace("START", "1").replace("NEXT", "{'a': ns.v, 'b': ns.v}"),
    "a function's dict in itself twice": IN_LOOP.replace("START", "1").replace("NEXT", "dict(a=ns.v, b=ns.v)"),
    "a namespace in itself twice": IN_LOOP.replace("START", "1").replace("NEXT", "namespace(a=ns.v, b=ns.v)"),
    "a namespace in itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "views of dicts": IN_LOOP.replace("START", "{}").replace("NEXT", "{'a': ns.v.items(), 'b': ns.v.items()}"),
    "a list of long texts": IN_LOOP.replace("START", "[]").replace("NEXT", "ns.v + ['x' * 59999 ~ i]"),
    "a long answer": LONG_LOOP,
    "a long answer of values": '{% for a in range(99999) %}{{ "x" * 1000 }}{% endfor %}',
    "a long text in a macro": "{% macro f() %}" + LONG_LOOP + "{% endmacro %}{% set x = f() %}",
    "long values in a macro": '{% macro f() %}{% for a in range(99999) %}{{ "x" * 59999 }}{% endfor %}{% endmacro %}'
    "{% set x = f() %}",
    "a long text in a block": "{% set x %}" + LONG_LOOP + "{% endset %}",
    "a long text in a filter": "{% filter upper %}" + LONG_LOOP + "{% endfilter %}",
    "padding": '{{ "x".center(1000000000) }}',
    "padding with zeros": '{{ "x".zfill(1000000000) }}',
    "tabs": '{{ ("\t" * 10000).expandtabs(10000000) }}',
    "replacement": f'{{{{ {LONG} | replace("x", {LONG}) }}}}',
    "replacement by a method": f'{{{{ {LONG}.replace("", {LONG}) }}}}',
    "translation": f"{{{{ {LONG}.translate({{120: {LONG}}}) }}}}",
    "join": f"{{{{ range(99999) | join({LONG}) }}}}",
    "join by a method": f"{{{{ {LONG}.join({LONG}) }}}}",
    "many replacements": f'{{{{ range(99999) | map("replace", "1", {LONG}) | list | length }}}}',
    "a width": '{{ "%1000000000d" % 1 }}',
    "a width as a value": '{{ "%*d" % (1000000000, 1) }}',
    "a precision": '{{ "%.1000000000f" | format(1.5) }}',
    "a width of a method": '{{ "{:1000000000}".format(1) }}',
    "a width as a value of a method": '{{ "{:{}}".format(1, 1000000000) }}',
    "a width by name": '{{ "{a:1000000000}".format_map({"a": 1}) }}',
    "many fields": f'{{{{ ("%(a)s" * 100000) % {{"a": {LONG}}} }}}}',
    "an indent": '{{ ("\n" * 60000) | indent(100000) }}',
    "an indent of JSON": "{{ [[[1]]] | tojson(indent=100000000) }}",
    "digits": '{{ 1.5 | round(1000000000, "ceil") }}',
    "bytes": '{{ (1).to_bytes(1000000000, "big") }}',
    "a sum of lists": "{{ ([[1] * 1000] * 100000) | sum(start=[]) }}",
    "an error message": f"{{{{ raise_exception([[[{LONG}] * 1000] * 1000] * 1000) }}}}",
    "a cycle": f"{{% for i in range(99999) %}}{{{{ loop.cycle({LONG}, 'y') }}}}{{% endfor %}}",
    "a filter that pads": '{{ "x" | center(1000000000) }}',
    "a filter that fills": "{{ [1] | batch(1000000000, 0) | list }}",
    "a filter that fills with a text": f"{{{{ [1] | batch(10000, {LONG}) | list }}}}",
    "a filter that splits": "{{ [1] | slice(1000000000) | list }}",
    "a filter that breaks lines": f"{{{{ ('x ' * 5000) | wordwrap(2, wrapstring={LONG}) }}}}",
    "escapes": f'{{{{ ("<" ~ {LONG}) | e | e | e | replace("a", "bb") ~ {LONG} }}}}',
}
REFUSED_OTHERWISE = {
    "division by zero": "{{ 1 / 0 }}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "deep blocks": "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    "deep lists": "{{ " + "[" * 2000 + "]" * 2000 + " }}",
    "a deep expression": "{{ " + "not " * 5000 + "x }}",
    "a huge range": "{% for i in range(1000000000) %}x{% endfor %}",
    "a function that writes": "{{ lipsum(n=1000000) }}",
}


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "TEXT", TEXT)
    monkeypatch.setattr(template_limits, "STEPS", STEPS)


def rendered(template: str, messages: list[dict[str, Any]] | None = None) -> str:
    return ChatTemplate(template).render(
        messages or [USER], None, {}, add_generation_prompt=True, continue_final_message=False
    )


def with_template(template: str) -> FastTokenizer:
    return FastTokenizer(fast(byte_level(), chat_template=template))


@pytest.mark.parametrize("template", TOO_MANY_STEPS.values(), ids=TOO_MANY_STEPS)
def test_long_loops_end(template: str) -> None:
    with pytest.raises(TemplateLimitError, match=r"^it takes more than \d+ (steps|s)$"):
        rendered(template)


@pytest.mark.parametrize("template", TOO_LARGE.values(), ids=TOO_LARGE)
def test_large_values_are_refused_before_they_exist(template: str) -> None:
    with pytest.raises(
        TemplateLimitError, match=r"^it makes .* of more than \d+ characters$|^it writes more than \d+ char"
    ):
        rendered(template)


@pytest.mark.parametrize("template", list(TOO_LARGE.values())[::5])
def test_a_tokenizer_rejects_what_its_template_cannot_render(template: str) -> None:
    tokenizer = with_template("{% if messages[0].role == 'tool' %}" + template + "{% endif %}x")
    assert tokenizer.render_chat(ChatPrompt([USER])) == "x"
    with pytest.raises(Rejected, match=r"^The chat template cannot render these messages: it ") as refusal:
        tokenizer.render_chat(ChatPrompt([{"role": "tool", "content": "x"}]))
    assert refusal.value.param == "messages"


@pytest.mark.parametrize("template", REFUSED_OTHERWISE.values(), ids=REFUSED_OTHERWISE)
def test_every_error_of_a_template_rejects_the_chat_and_not_the_model(template: str) -> None:
    tokenizer = with_template(template)
    with pytest.raises(Rejected, match=r"^The chat template refuses these messages: .") as refusal:
        tokenizer.render_chat(ChatPrompt([USER]))
    assert len(refusal.value.message) <= 500


def test_a_template_that_exceeds_a_limit_for_a_short_chat_ends_the_start() -> None:
    sentence = (
        r"^The chat template of the model cannot render a short chat: it makes a text of more than \d+ characters\.$"
    )
    with pytest.raises(StartupError, match=sentence):
        with_template("{{ 'x' * 100000000 }}")


def test_limits_grow_with_the_messages() -> None:
    long = [{"role": "user", "content": "x" * TEXT}, USER]
    twice = "{% for m in messages %}{{ m.content ~ m.content }}{% endfor %}"
    assert len(rendered(twice, long)) == 2 * TEXT + 10
    many = [USER] * 100
    quadratic = "{% for m in messages %}{% for n in messages %}{{ loop.last | int }}{% endfor %}{% endfor %}"
    assert rendered(quadratic, many).count("1") == len(many)


def test_the_sizes_of_values() -> None:
    assert text_size(["xxxx", {"key": 1.5}, None], 1000) == 4 + 3 + 6 * 8
    endless: list[Any] = []
    endless.append(endless)
    assert text_size(endless, 1000) > 1000
