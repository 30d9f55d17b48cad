"""Recorded requests for each parser of tool calls and reasoning: the simulated model answers as the family does."""

from __future__ import annotations

from typing import Any

from recorded_cases import Ask, Setup, cases, whole_and_streamed
from recorded_openai import CHAT, NAMED, RESPONSES, TOOLS
from recorded_others import MESSAGES, TOOL

ARGUMENTS = '{"city": "Zürich 日本語", "days": 2}'
OBJECT = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
# Tool parser → reasoning parser, and the answer of the model in its format.
PARSERS: dict[str, tuple[str, str, str]] = {
    "hermes": (
        "think",
        "<think>\nWhy 日本?\n</think>\n\n",
        f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
    ),
    "llama3": ("none", "<think>why</think>", f'{{"name": "weather", "parameters": {ARGUMENTS}}}'),
    "mistral": (
        "mistral",
        "[THINK]why[/THINK]",
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}, {{"name": "clock"}}]',
    ),
    "deepseek": (
        "deepseek_r1",
        "why</think>\n",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{ARGUMENTS}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "kimi": (
        "kimi",
        "◁think▷why◁/think▷",
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{ARGUMENTS}"
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "qwen3_coder": (
        "seed_oss",
        "<seed:think>why</seed:think>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    "glm": (
        "cohere",
        "<|START_THINKING|>why<|END_THINKING|>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>",
    ),
    "pythonic": (
        "granite",
        "Here is my thought process:why Here is my response:",
        '[weather(city="x", days=2), clock()]',
    ),
    "jamba": ("think", "<think>why</think>", f"<tool_calls>[{OBJECT}]</tool_calls>"),
    "granite": ("none", "", f"<|tool_call|>[{OBJECT}]"),
    "nemotron": ("none", "", f"<TOOLCALL>[{OBJECT}]</TOOLCALL>"),
    "cohere": (
        "none",
        "",
        f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "weather", "parameters": {ARGUMENTS}}}]<|END_ACTION|>',
    ),
    "internlm": (
        "none",
        "",
        f'<|action_start|><|plugin|>\n{{"name": "weather", "parameters": {ARGUMENTS}}}<|action_end|>\n',
    ),
    "longcat": ("none", "", f"<longcat_tool_call>{OBJECT}</longcat_tool_call>"),
    "phi4": ("none", "", f"functools[{OBJECT}]"),
    "lfm2": ("none", "", '<|tool_call_start|>[weather(city="x", days=2), clock()]<|tool_call_end|>'),
    "llama4": ("none", "", '<|python_start|>[weather(city="x", days=2)]<|python_end|>'),
    "minimax": (
        "none",
        "",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">x</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    "seed_oss": (
        "none",
        "",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>\nx\n</parameter>\n</function>\n</seed:tool_call>",
    ),
}


def parser_setup(name: str) -> Setup:
    reasoning, thought, call = PARSERS[name]
    script = {
        "call": f"I look.\n{call}",
        "both": f"{thought}{call}",
        "think": f"{thought}Yes.",
        "cut": call[: len(call) // 2],
    }
    asks: list[Ask] = []
    for case in script:
        messages = [{"role": "system", "content": case}, {"role": "user", "content": "hi"}]
        base: dict[str, Any] = {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 400}
        asks += whole_and_streamed(CHAT, base, {case: {}})
        asks += cases(CHAT, base, {f"{case} hidden": {"separate_reasoning": False, "tool_choice": "none"}})
    base = {**base, "messages": [{"role": "system", "content": "nothing"}, *base["messages"][1:]]}
    asks += whole_and_streamed(CHAT, base, {"forced": {"tool_choice": "required"}, "named": {"tool_choice": NAMED}})
    said = {"input": "hi", "temperature": 0, "tools": [{"type": "function", **TOOLS[0]["function"]}]}
    asks += whole_and_streamed(RESPONSES, said, {"both": {"instructions": "both"}})
    said = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 400, "tools": [TOOL]}
    asks += whole_and_streamed(MESSAGES, said, {"both": {"system": "both"}})
    flags = ("--sim-script", "{dir}/script.json", "--tool-call-parser", name, "--reasoning-parser", reasoning)
    return Setup(f"parser {name}", flags, tuple(asks), script)
