"""Properties of all formats in the table."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.server.parsers.tools.table import FORMATS, detect

from ...reading_tool import read, splits

PIECES = (
    '{"name": "clock"',
    ', "arguments": {',
    '"a": "',
    '"',
    "}",
    "]",
    "[",
    "{",
    "weather",
    "clock",
    "(",
    ")",
    " ",
    "\n",
)
STRANGE = ("👩‍👩‍👧", "e\u0301", "日", "\\", ":", ",", ";", "x", "1", "```", "<", "|")


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_any_text_in_any_parts_is_parsed_like_the_whole(name: str) -> None:
    vocabulary = (*FORMATS[name].markers, *PIECES, *STRANGE)
    texts = st.lists(st.sampled_from(vocabulary), max_size=14).map("".join)

    @settings(max_examples=150)
    @given(splits(texts))
    def check(split: tuple[str, list[str]]) -> None:
        text, parts = split
        whole = read(name, [text])
        assert read(name, parts) == whole
        assert whole.calls or whole.text == text, "no text is lost"
        assert {call for call, _ in whole.calls} <= {"weather", "clock"}

    check()


@pytest.mark.parametrize("name", FORMATS)
def test_no_mark_begins_inside_another(name: str) -> None:
    markers = [marker for marker in FORMATS[name].markers if len(marker) > 2]
    assert not [(one, two) for one, two in permutations(set(markers), 2) if one in two]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>\\n' }}", "hermes"),
        ("<tool_call>\n<function=x>", "qwen3_coder"),
        ("<tool_call>{name}\n<arg_key>", "glm"),
        ("'[TOOL_CALLS]'", "mistral"),
        ("'\"parameters\": '", "llama3"),
        ("no tools", None),
        ("", None),
    ],
)
def test_the_family_is_found_in_the_template(template: str, name: str | None) -> None:
    assert detect(template) == name
