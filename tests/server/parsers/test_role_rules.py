"""Conversations rearranged to sequences of roles that a chat template accepts."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.server.parsers.chat_template_profile import probe_chat_template
from ebbtide.server.parsers.role_rules import RoleRules, join_repeats, keep_system, place_systems
from ebbtide.tokenization.tokenizer import SimTokenizer

from .. import chat_templates
from ..chat_templates import tokenizer_with

NO_SYSTEM = RoleRules(takes_system=False, takes_more_systems=False)
FIRST_ONLY = RoleRules(takes_more_systems=False)
STRICT = RoleRules(takes_repeats=False, takes_call_after_text=False, takes_user_after_result=False)


def chat(text: str) -> list[dict[str, Any]]:
    """Return the messages written as "s:text u:text a:text t:text"."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    parts = (part.partition(":") for part in text.split())
    return [{"role": roles[role], "content": content} for role, _, content in parts]


def placed(text: str, rules: RoleRules, *, is_continuation: bool = False) -> list[tuple[str, str]]:
    return shown(place_systems(chat(text), rules, is_continuation=is_continuation))


def shown(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["role"][0], message["content"]) for message in messages]


@pytest.mark.parametrize(
    ("template", "rules"),
    [
        ("PLAIN", RoleRules()),
        ("HERMES", RoleRules()),
        ("ITEMS", RoleRules()),
        ("NO_SYSTEM", RoleRules(takes_system=False, takes_more_systems=False)),
        ("NO_SYSTEM_ALTERNATE", RoleRules(takes_system=False, takes_more_systems=False, takes_repeats=False)),
        ("FIRST_SYSTEM_ALTERNATE", RoleRules(takes_more_systems=False, takes_repeats=False)),
        (
            "MISTRAL_ALTERNATE",
            RoleRules(
                takes_more_systems=False,
                takes_repeats=False,
                takes_call_after_text=False,
                takes_user_after_result=False,
                system_needs_final_user=True,
            ),
        ),
        ("DROPS_SYSTEMS", RoleRules(takes_more_systems=False)),
    ],
)
def test_the_rules_of_a_template_are_found_by_rendering(template: str, rules: RoleRules) -> None:
    assert probe_chat_template(tokenizer_with(getattr(chat_templates, template))).roles == rules


def test_a_lenient_tokenizer_and_a_model_without_template_have_no_rules() -> None:
    assert probe_chat_template(SimTokenizer()).roles == RoleRules()
    assert probe_chat_template(tokenizer_with(None)).roles == RoleRules()


def test_system_messages_stay_where_the_template_accepts_them() -> None:
    assert placed("s:a s:b u:c s:d", RoleRules()) == [("s", "a"), ("s", "b"), ("u", "c"), ("s", "d")]


@pytest.mark.parametrize("text", ["s:a s:b u:c a:d s:e u:f", "s:a u:c s:b a:d u:f s:e", "u:c s:a a:d s:b s:e u:f"])
def test_later_system_messages_are_appended_to_the_first(text: str) -> None:
    assert placed(text, FIRST_ONLY) == [("s", "a\n\nb\n\ne"), ("u", "c"), ("a", "d"), ("u", "f")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s:a u:b", [("u", "a\n\nb")]),
        ("s:a s:b u:c", [("u", "a\n\nb\n\nc")]),
        ("u:a a:b s:c a:d u:e", [("u", "a"), ("a", "b"), ("a", "d"), ("u", "c\n\ne")]),
        ("u:a a:b s:c", [("u", "a"), ("a", "b"), ("u", "c")]),
        ("u:a s:b a:c", [("u", "a"), ("u", "b"), ("a", "c")]),
        ("s:a", [("u", "a")]),
        ("s:a t:b s:c", [("u", "a\n\nc"), ("t", "b")]),
        ("u:a a:b", [("u", "a"), ("a", "b")]),
    ],
)
def test_system_messages_go_into_the_next_user_message(text: str, expected: list[tuple[str, str]]) -> None:
    assert placed(text, NO_SYSTEM) == expected


def test_a_later_turn_has_no_first_system_message() -> None:
    assert placed("s:a u:b", FIRST_ONLY, is_continuation=True) == [("u", "a\n\nb")]
    assert placed("u:a s:b", FIRST_ONLY, is_continuation=True) == [("u", "a"), ("u", "b")]
    assert placed("s:a u:b", RoleRules(), is_continuation=True) == [("s", "a"), ("u", "b")]


def test_repeated_roles_are_joined() -> None:
    messages = chat("s:a u:b u:c a:d a:e t:f t:g u:h u:i")
    assert shown(join_repeats(messages, STRICT)) == [
        ("s", "a"),
        ("u", "b\n\nc"),
        ("a", "d\n\ne"),
        ("t", "f"),
        ("t", "g\n\nh\n\ni"),
    ]
    assert join_repeats(messages, RoleRules()) == messages


def test_joined_assistant_messages_keep_reasoning_and_calls() -> None:
    one = {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [{"id": "a"}]}
    other = {"role": "assistant", "content": "Look.", "reasoning_content": "so", "tool_calls": [{"id": "b"}]}
    assert join_repeats([one, other], STRICT) == [
        {
            "role": "assistant",
            "content": "Look.",
            "reasoning_content": "why\n\nso",
            "tool_calls": [{"id": "a"}, {"id": "b"}],
        }
    ]
    assert join_repeats([one, other], RoleRules(takes_repeats=False)) == [one, other]
    plain = {"role": "assistant", "content": "x"}
    assert join_repeats([plain, plain], STRICT) == [{"role": "assistant", "content": "x\n\nx"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s:a u:b", [("s", "a"), ("u", "b")]),
        ("s:a u:b a:c", [("u", "a\n\nb"), ("a", "c")]),
        ("s:a u:b a:c u:d a:e t:f", [("u", "b"), ("a", "c"), ("u", "a\n\nd"), ("a", "e"), ("t", "f")]),
        ("s:a", [("u", "a")]),
        ("s:a a:b", [("u", "a"), ("a", "b")]),
        ("u:a a:b", [("u", "a"), ("a", "b")]),
    ],
)
def test_a_system_message_is_not_left_out(text: str, expected: list[tuple[str, str]]) -> None:
    assert shown(keep_system(chat(text), RoleRules(system_needs_final_user=True))) == expected
    assert keep_system(chat(text), RoleRules()) == chat(text)
