"""The supported formats of tool calls.

A new format needs one entry here, and one file if no existing parser can handle it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .marked_calls import MarkedCallFormat, marked_calls
from .pythonic import pythonic_calls
from .stream_scanner import ParserCoroutine, StreamScanner
from .xml_calls import XmlCallFormat, xml_calls

Schemas = Mapping[str, Mapping[str, Any]]  # function name → JSON schema of its arguments


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format of tool calls.

    Attributes:
        signs: detection strings; a chat template of this format contains at least one of them.
        markers: strings that may be control tokens; the detokenizer must keep them for the parser.
        read: the parser.
        form: the syntax from which a grammar is built; None if calls are not JSON objects that contain the name.
    """

    signs: tuple[str, ...]
    markers: tuple[str, ...]
    read: Callable[[StreamScanner, Schemas], ParserCoroutine[None]]
    form: MarkedCallFormat | None = None


HERMES = MarkedCallFormat(opens=("<tool_call>",), closes=("</tool_call>",))
LLAMA3 = MarkedCallFormat(opens=("<|python_tag|>",), bare=True, key="parameters")
MISTRAL = MarkedCallFormat(
    opens=("[TOOL_CALLS]",),
    listed=True,
    head=re.compile(r"\s*([A-Za-z0-9_-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*"),
)
DEEPSEEK = MarkedCallFormat(
    opens=("<｜tool▁call▁begin｜>",),
    skips=("<｜tool▁calls▁begin｜>",),
    closes=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```"),
    head=re.compile(r"\s*(?:function<｜tool▁sep｜>([A-Za-z0-9_-]+)\s*```json|([A-Za-z0-9_-]+)<｜tool▁sep｜>)\s*"),
)
KIMI = MarkedCallFormat(
    opens=("<|tool_call_begin|>",),
    skips=("<|tool_calls_section_begin|>",),
    closes=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
    head=re.compile(r"\s*(?:functions\.)?([A-Za-z0-9_-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*"),
)
JAMBA = MarkedCallFormat(opens=("<tool_calls>",), closes=("</tool_calls>",), listed=True)
GRANITE = MarkedCallFormat(
    opens=("<|tool_call|>", "<tool_call>"), closes=("</tool_call>", "<|/tool_call|>"), listed=True
)
NEMOTRON = MarkedCallFormat(opens=("<TOOLCALL>",), closes=("</TOOLCALL>",), listed=True)
COHERE = MarkedCallFormat(opens=("<|START_ACTION|>",), closes=("<|END_ACTION|>",), listed=True, key="parameters")
INTERNLM = MarkedCallFormat(
    opens=("<|plugin|>",), skips=("<|action_start|>",), closes=("<|action_end|>",), key="parameters"
)
LONGCAT = MarkedCallFormat(opens=("<longcat_tool_call>",), closes=("</longcat_tool_call>",))
PHI4 = MarkedCallFormat(opens=("functools",), listed=True)
QWEN3_CODER = XmlCallFormat(
    opens="<function=",
    name_closes=">",
    key="<parameter=",
    key_closes=">",
    value_closes="</parameter>",
    ends="</function>",
    skips=("<tool_call>",),
    closes=("</tool_call>",),
)
SEED_OSS = replace(QWEN3_CODER, skips=("<seed:tool_call>",), closes=("</seed:tool_call>",))
GLM = XmlCallFormat(
    opens="<tool_call>",
    name_closes="",
    key="<arg_key>",
    key_closes="</arg_key>",
    value_opens="<arg_value>",
    value_closes="</arg_value>",
    ends="</tool_call>",
)
MINIMAX = XmlCallFormat(
    opens='<invoke name="',
    name_closes='">',
    key='<parameter name="',
    key_closes='">',
    value_closes="</parameter>",
    ends="</invoke>",
    skips=("<minimax:tool_call>",),
    closes=("</minimax:tool_call>",),
)
LFM2 = ("<|tool_call_start|>",), ("<|tool_call_end|>",)
LLAMA4 = ("<|python_start|>",), ("<|python_end|>",)


def _marked(signs: tuple[str, ...], form: MarkedCallFormat) -> ToolFormat:
    markers = (*form.opens, *form.skips, *form.closes)
    inner = ("<｜tool▁sep｜>", "[ARGS]", "[CALL_ID]", "<|tool_call_argument_begin|>")
    as_objects = form if form.listed or form.head is None else None
    return ToolFormat(signs, (*markers, *inner), partial(marked_calls, form=form), as_objects)


def _xml(signs: tuple[str, ...], form: XmlCallFormat) -> ToolFormat:
    markers = (form.opens, form.key, form.key_closes, form.value_opens, form.value_closes, form.ends)
    used = tuple(marker for marker in (*markers, *form.skips, *form.closes) if len(marker) > 1)
    return ToolFormat(signs, used, partial(xml_calls, form=form))


def _pythonic(signs: tuple[str, ...], marks: tuple[tuple[str, ...], tuple[str, ...]], *, bare: bool) -> ToolFormat:
    read = partial(pythonic_calls, opens=marks[0], closes=marks[1], bare=bare)
    return ToolFormat(signs, (*marks[0], *marks[1]), read)


# In order of detection in the chat template: a format whose detection string contains that of another format must come
# first.
FORMATS: dict[str, ToolFormat] = {
    "seed_oss": _xml(("<seed:tool_call>",), SEED_OSS),
    "qwen3_coder": _xml(("<function=",), QWEN3_CODER),
    "glm": _xml(("<arg_key>",), GLM),
    "minimax": _xml(("<minimax:tool_call>",), MINIMAX),
    "deepseek": _marked(("<｜tool▁call▁begin｜>",), DEEPSEEK),
    "kimi": _marked(("<|tool_call_begin|>",), KIMI),
    "mistral": _marked(("[TOOL_CALLS]",), MISTRAL),
    "lfm2": _pythonic(("<|tool_call_start|>",), LFM2, bare=False),
    "llama4": _pythonic(("<|python_start|>",), LLAMA4, bare=True),
    "granite": _marked(("<|tool_call|>",), GRANITE),
    "nemotron": _marked(("<TOOLCALL>",), NEMOTRON),
    "cohere": _marked(("<|START_ACTION|>",), COHERE),
    "internlm": _marked(("<|plugin|>",), INTERNLM),
    "longcat": _marked(("<longcat_tool_call>",), LONGCAT),
    "hermes": _marked(("<tool_call>",), HERMES),
    "jamba": _marked(("<tool_calls>",), JAMBA),
    "phi4": _marked(("functools",), PHI4),
    "llama3": _marked(("<|python_tag|>", '"parameters": '), LLAMA3),
    "pythonic": _pythonic((), ((), ()), bare=True),
}


def detect(template: str) -> str | None:
    """Return the name of the tool call format that a chat template uses; None if it is unknown."""
    return next((name for name, form in FORMATS.items() if any(sign in template for sign in form.signs)), None)
