"""The limits of a request body that bound the time of its parsing: keys of one object, digits of an integer."""

from __future__ import annotations

import json

import pytest

from ebbtide.errors import Rejected
from ebbtide.server.http.strict_json import MAX_DIGITS, MAX_KEYS, parse, parse_arguments


def keys(count: int, name: str = "k") -> str:
    """The inside of an object."""
    return ",".join(f'"{name}{i}" : 1' for i in range(count))


TOO_MANY = keys(MAX_KEYS + 1)


@pytest.mark.parametrize(
    "text",
    [
        f"{{{TOO_MANY}}}",
        f'{{"x":[{{}},{{"y":{{{TOO_MANY}}}}},{{}}]}}',
        f"{{{TOO_MANY}",  # the error of the parser would be another one
        f"{{{keys(MAX_KEYS + 1, name='}')}}}",
    ],
    ids=["one object", "deep", "before the parser", "braces in the keys"],
)
def test_too_many_keys_in_an_object_are_refused(text: str) -> None:
    with pytest.raises(Rejected, match=f"more than {MAX_KEYS} keys") as caught:
        parse(text.encode())
    assert caught.value.status == 400


def test_keys_within_the_limit_and_keys_in_texts_are_accepted() -> None:
    most = f"{{{keys(MAX_KEYS)}}}"
    assert len(parse(most.encode())) == len(parse_arguments(most) or {}) == MAX_KEYS
    for value in ([{}, *([json.loads(most)] * 3)], TOO_MANY, [TOO_MANY, "}" * 500_000, TOO_MANY, {"a": TOO_MANY}]):
        assert parse(json.dumps({"x": value}).encode()) == {"x": value}


def test_arguments_of_a_call_with_too_many_keys_are_no_object() -> None:
    assert parse_arguments(f"{{{TOO_MANY}}}") is None


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("form", ["%s", "[[%s]]", '{"a": %s}'])
def test_an_integer_with_too_many_digits_is_refused(form: str, sign: str) -> None:
    longest = sign + "9" * (MAX_DIGITS - len(sign))
    text = '{"x": %s}' % (form % longest)
    assert parse(text.encode()) == parse_arguments(text) == json.loads(text)
    text = '{"x": %s}' % (form % (longest + "9"))
    with pytest.raises(Rejected, match="a number is too long"):
        parse(text.encode())
    assert parse_arguments(text) is None


def test_a_text_may_have_any_number_of_digits() -> None:
    value = {"x": "9" * 10 * MAX_DIGITS, "y": 0.125}
    assert parse(json.dumps(value).encode()) == value
