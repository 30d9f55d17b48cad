"""Where reasoning begins and ends."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.server.parsers.output_parser import ParserConfig, ReasoningMode
from ebbtide.server.parsers.reasoning import REASONING, detect, prompt_opens_reasoning

from ..reading_tool import Read, read_with


def read(text: str, name: str = "think", **more: Any) -> tuple[str, str]:
    """(reasoning, text) of an answer, whole and by characters."""
    config = ParserConfig(reasoning=REASONING[name], **more)
    whole = read_with(config, [text])
    assert read_with(config, list(text) or [""]) == whole
    return whole.reasoning, whole.text


@pytest.mark.parametrize("name", list(REASONING))
def test_every_family_distinguishes_reasoning_from_the_answer(name: str) -> None:
    form = REASONING[name]
    assert read(f"{form.opens}\n why\n{form.closes}\n\nso", name) == (" why", "so")


@pytest.mark.parametrize(
    ("text", "starts_in_reasoning", "expected"),
    [
        ("so</think>yes", True, ("so", "yes")),
        ("<think>so</think>yes", True, ("so", "yes")),
        ("so", True, ("so", "")),
        ("\n\nso\n", True, ("so\n", "")),
        ("so</think>yes", False, ("", "so</think>yes")),
        ("yes <think>so</think>", False, ("", "yes <think>so</think>")),
        (" \n<think>so</think>yes", False, ("so", "yes")),
        ("<think></think>yes", False, ("", "yes")),
        ("<thin", False, ("", "<thin")),
        (" \n", False, ("", " \n")),
        ("<think>a</thi", False, ("a</thi", "")),
        ("", True, ("", "")),
    ],
)
def test_where_reasoning_begins_and_ends(text: str, starts_in_reasoning: bool, expected: tuple[str, str]) -> None:
    assert read(text, starts_in_reasoning=starts_in_reasoning) == expected


@pytest.mark.parametrize("text", ["<think>\nso\n</think>\n\nyes", "\n<think>", "so</think>yes", "", "\n\n"])
@pytest.mark.parametrize("starts_in_reasoning", [True, False])
def test_reasoning_that_is_kept_in_the_text_is_verbatim(text: str, starts_in_reasoning: bool) -> None:
    assert read(text, starts_in_reasoning=starts_in_reasoning, reasoning_mode=ReasoningMode.INLINE) == ("", text)


def test_a_family_that_always_reasons_needs_no_marker() -> None:
    assert prompt_opens_reasoning(REASONING["deepseek_r1"], "anything")


def test_a_prompt_can_open_the_reasoning() -> None:
    assert prompt_opens_reasoning(REASONING["think"], "<|assistant|><think>\n")
    assert not prompt_opens_reasoning(REASONING["think"], "<|assistant|><think>\n\n</think>\n\n")


def test_the_family_is_found_in_the_template() -> None:
    assert detect("{{ content.split('</think>')[-1] }}") == "think"
    assert detect("plain") is None


def test_a_finish_reason_is_unchanged() -> None:
    config = ParserConfig(reasoning=REASONING["think"])
    assert read_with(config, ["<think>a"], "length") == Read("", [], "length", "a")
