"""The conversion of request fields to a constraint, without compiling it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebbtide.errors import Rejected
from ebbtide.server.api.generation_request import GenerationRequest
from ebbtide.server.structured.constraints import (
    MAX_BYTES,
    choice_constraint,
    constraint_of,
    ebnf_constraint,
    json_constraint,
    regex_constraint,
    schema_constraint,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: regex_constraint("x" * (MAX_BYTES + 1), "regex"),
        lambda: ebnf_constraint("x" * (MAX_BYTES + 1), "regex"),
        lambda: choice_constraint(["x" * MAX_BYTES], "regex"),
        lambda: json_constraint(" " * (MAX_BYTES + 1), "regex"),  # refused before it is parsed
        lambda: schema_constraint({"enum": ["x" * MAX_BYTES]}, "regex"),
    ],
)
def test_a_grammar_beyond_the_limit_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(Rejected, match="'regex' is larger than 256 KiB") as caught:
        make()
    assert (caught.value.status, caught.value.param) == (400, "regex")


def test_without_a_field_there_is_no_constraint() -> None:
    assert constraint_of(GenerationRequest()) is None


def test_choices_are_accepted_unchanged() -> None:
    assert (
        choice_constraint(['"a" | "b"', "a\nb", "a\nb"], "x").lark
        == 'start: CHOICE\nCHOICE: "\\"a\\" | \\"b\\"" | "a\\nb"'
    )
