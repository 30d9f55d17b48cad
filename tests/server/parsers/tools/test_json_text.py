"""JSON that is parsed in parts, compared with Python's parser."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.server.parsers.tools.json_text import JsonText

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def take(text: str, parts: int) -> tuple[str, str, bool, bool]:
    """(accepted, rest, done, bad) for a text that arrives in parts of this many characters."""
    machine = JsonText()
    at = 0
    while at < len(text) and not machine.done and not machine.bad:
        at = machine.consume(text, at, min(len(text), at + parts))
    return machine.take_accepted(), text[at:], machine.done, machine.bad


@given(st.lists(VALUES, max_size=3) | st.dictionaries(st.text(), VALUES, max_size=3), st.booleans(), st.integers(1, 9))
def test_a_value_is_accepted_to_its_end(value: object, ascii_only: bool, parts: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=None if parts % 2 else 1)
    assert take(f" {text}rest", parts) == (f" {text}", "rest", True, False)


@given(st.text('{}[]":,\\ 01.-eEtrufalsn"x\n', max_size=12), st.integers(1, 4))
def test_it_agrees_with_python_on_any_text(text: str, parts: int) -> None:
    accepted, rest, done, bad = take(f"[{text}", parts)
    assert (accepted, rest, done, bad) == take(f"[{text}", 100)
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(f"[{text}")
    except ValueError:
        assert not done
    else:
        assert done or "\b" in text
        assert len(rest) == len(text) + 1 - end


@pytest.mark.parametrize(
    "text", ["[1 2]", "[01]", '["\\x"]', '["\\u12g"]', "{1:2}", '{"a" 1}', "[}", "[1,]", "[NaN]", "}", "[\x01"]
)
def test_invalid_json_is_bad(text: str) -> None:
    assert take(text, 1)[3]


def test_nesting_has_a_limit() -> None:
    assert take("[" * 64 + "]" * 64, 7)[2]
    assert take("[" * 65, 7)[3]


def test_a_loose_value_ends_with_its_brackets() -> None:
    machine = JsonText()
    text = '{"a": 1,, b: "}", [c]} rest'
    at = machine.consume(text, 0, len(text))
    assert machine.bad
    machine.ignore_errors()
    at = machine.consume(text, at, len(text))
    assert machine.done
    assert (machine.take_accepted(), text[at:]) == ('{"a": 1,, b: "}", [c]}', " rest")
