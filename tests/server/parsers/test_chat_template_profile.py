"""The properties of a chat template that are found by rendering it."""

from __future__ import annotations

import pytest

from ebbtide.errors import StartupError
from ebbtide.server.parsers.chat_template_profile import (
    CallStyle,
    ChatTemplateProfile,
    check_parsers,
    probe_chat_template,
)
from ebbtide.server.parsers.reasoning import REASONING
from ebbtide.server.parsers.tools.table import FORMATS
from ebbtide.tokenization.tokenizer import SimTokenizer

from ..chat_templates import DEEPSEEK, HERMES, LLAMA, MISTRAL, NO_SYSTEM, PLAIN, UNUSABLE, tokenizer_with


def test_a_plain_template_gets_a_description_of_the_tools() -> None:
    assert probe_chat_template(tokenizer_with(PLAIN)) == ChatTemplateProfile()
    assert probe_chat_template(SimTokenizer()) == ChatTemplateProfile()


def test_a_model_without_a_template_has_a_profile_too() -> None:
    assert probe_chat_template(tokenizer_with(None)) == ChatTemplateProfile()


def test_a_template_may_refuse_system_messages() -> None:
    assert probe_chat_template(tokenizer_with(NO_SYSTEM)).roles.takes_system is False


def test_a_template_with_tools_and_reasoning() -> None:
    profile = probe_chat_template(tokenizer_with(HERMES))
    assert profile.tool_format is FORMATS["hermes"]
    assert profile.reasoning is REASONING["think"]
    assert profile.calls == CallStyle()


def test_the_style_of_earlier_calls_is_found_by_trying() -> None:
    deepseek = probe_chat_template(tokenizer_with(DEEPSEEK))
    assert deepseek.tool_format is FORMATS["deepseek"]
    assert deepseek.calls == CallStyle(arguments_as_text=True, content_is_none=True)
    llama = probe_chat_template(tokenizer_with(LLAMA))
    assert llama.tool_format is FORMATS["llama3"]
    assert llama.calls == CallStyle(single_calls=True)
    mistral = probe_chat_template(tokenizer_with(MISTRAL))
    assert mistral.tool_format is FORMATS["mistral"]
    assert mistral.calls == CallStyle(short_ids=True)


def test_a_template_that_cannot_write_calls_is_not_used_for_them() -> None:
    assert probe_chat_template(tokenizer_with(UNUSABLE)).calls is None


def test_parser_names_override_the_template() -> None:
    profile = probe_chat_template(tokenizer_with(HERMES), "llama3", "none")
    assert profile.tool_format is FORMATS["llama3"]
    assert profile.reasoning is None


@pytest.mark.parametrize(("tools", "reasoning"), [("nothing", "auto"), ("auto", "nothing"), ("none", "auto")])
def test_an_unknown_name_is_refused_at_start(tools: str, reasoning: str) -> None:
    check_parsers("auto", "none")
    with pytest.raises(StartupError, match="is unknown; it must be one of auto, "):
        check_parsers(tools, reasoning)
