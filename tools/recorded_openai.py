"""Recorded requests of the OpenAI routes."""

from __future__ import annotations

from typing import Any

from recorded_cases import Ask, cases, each_value, post, whole_and_streamed

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
GREEDY = {"temperature": 0, "ignore_eos": True}
COMPLETION = {"prompt": "tide", "max_tokens": 10, **GREEDY}
USER = [{"role": "user", "content": "tide"}]
CHATTING = {"messages": USER, "max_tokens": 10, **GREEDY}
RESPONDING = {"input": "tide", "max_output_tokens": 10, "temperature": 0}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "Looks.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "clock"}}]
NAMED = {"type": "function", "function": {"name": "weather"}}
LARK = 'start: "yes" | "no"'
GBNF = 'root ::= "a" [0-9]+ "b"'

# Fields that every generating OpenAI route accepts.
SHARED: dict[str, dict[str, Any]] = {
    "plain": {},
    "one token": {"max_tokens": 1},
    "model": {"model": "sim"},
    "seed": {"temperature": 1, "seed": 7},
    "seed and top_p": {"temperature": 0.8, "seed": -3, "top_p": 0.5},
    "top_p 0": {"temperature": 1, "seed": 7, "top_p": 0},
    "top_k": {"temperature": 1.5, "seed": 8, "top_k": 3},
    "min_p": {"temperature": 1.5, "seed": 8, "min_p": 0.3},
    "presence": {"presence_penalty": 2},
    "frequency": {"frequency_penalty": 1.5, "max_tokens": 30},
    "repetition": {"repetition_penalty": 2, "max_tokens": 30},
    "logit_bias": {"logit_bias": {"65": 100}},
    "n": {"n": 3, "temperature": 1, "seed": 1},
    "stop": {"stop": "|"},
    "stops": {"stop": ["nothing", "T|"]},
    "stop included": {"stop": ["T|"], "include_stop_str_in_output": True},
    "no_stop_trim": {"stop": ["T|"], "no_stop_trim": True},
    "stop ids": {"stop_token_ids": [73]},
    "stop ids shown": {"stop_token_ids": [73], "include_stop_str_in_output": True},
    "min_tokens": {"stop": ["|"], "min_tokens": 8, "ignore_eos": False},
    "until the end": {"max_tokens": 600, "ignore_eos": False},
    "special tokens": {"skip_special_tokens": False, "ignore_eos": False, "logit_bias": {"256": 100}},
    "token ids": {"return_token_ids": True},
    "salt": {"cache_salt": "salt"},
    "priority": {"priority": 50},
    "regex": {"regex": "[a-c]{3}-[0-9]{2}"},
    "lark": {"ebnf": LARK},
    "gbnf": {"ebnf": GBNF},
    "choice": {"structured_outputs": {"choice": ["red", "green"]}},
    "structured regex": {"structured_outputs": {"regex": "x+y"}},
    "structured json": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 90},
    "structured grammar": {"structured_outputs": {"grammar": LARK}},
    "json_object": {"response_format": {"type": "json_object"}, "max_tokens": 40},
    "json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}},
        "max_tokens": 90,
    },
    "format text": {"response_format": {"type": "text"}},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "nulls": {"stop": None, "seed": None, "logit_bias": None, "stream_options": None},
    "unknown field": {"no_such_field": 1},
}
COMPLETION_CASES: dict[str, dict[str, Any]] = {
    "ids": {"prompt": [116, 105, 100, 101]},
    "two prompts": {"prompt": ["one", "two"]},
    "two prompts of ids, n": {"prompt": [[65, 66], [67]], "n": 2, "temperature": 1, "seed": 5},
    "echo": {"echo": True},
    "echo of ids": {"echo": True, "prompt": [240, 159, 140, 138, 65]},
    "echo alone": {"echo": True, "max_tokens": 0},
    "echo and logprobs": {"echo": True, "logprobs": 2},
    "echo alone and logprobs": {"echo": True, "logprobs": 1, "max_tokens": 0},
    "logprobs 0": {"logprobs": 0},
    "logprobs 5": {"logprobs": 5, "max_tokens": 3},
    "logprobs, n": {"logprobs": 1, "n": 2, "temperature": 1, "seed": 9},
    "logprobs as ids": {"logprobs": 1, "return_tokens_as_token_ids": True},
    "logprobs of penalties": {"logprobs": 2, "presence_penalty": 1},
    "emoji": {"prompt": "emoji", "max_tokens": 90},
    "emoji, logprobs": {"prompt": "emoji", "max_tokens": 12, "logprobs": 1},
    "emoji, stop": {"prompt": "emoji", "max_tokens": 90, "stop": ["größer"]},
    "broken": {"prompt": "broken", "max_tokens": 20},
    "near miss": {"prompt": "near miss", "max_tokens": 40, "stop": ["STOP"]},
    "separators": {"prompt": "separators", "max_tokens": 40},
    "prompt_logprobs, no answer": {"prompt_logprobs": 0, "max_tokens": 0},
    "suffix empty": {"suffix": ""},
}
CHAT_CASES: dict[str, dict[str, Any]] = {
    # The simulated model answers the chat with ">F@Q NHzJm", and the completion with "rtIT|'7".
    "stop": {"stop": "Q N"},
    "stops": {"stop": ["nothing", "Q N"]},
    "stop included": {"stop": ["Q N"], "include_stop_str_in_output": True},
    "no_stop_trim": {"stop": ["Q N"], "no_stop_trim": True},
    "stop ids": {"stop_token_ids": [81]},
    "stop ids shown": {"stop_token_ids": [81], "include_stop_str_in_output": True},
    "min_tokens": {"stop": ["Q"], "min_tokens": 8, "ignore_eos": False},
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 3, "max_tokens": 3},
    "logprobs as ids": {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True},
    "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 4},
    "system": {"messages": [{"role": "system", "content": "be brief"}, *USER]},
    "developer": {"messages": [{"role": "developer", "content": "be brief"}, *USER]},
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "continued": {
        "messages": [*USER, {"role": "assistant", "content": "be"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "no generation prompt": {"add_generation_prompt": False},
    "effort": {"reasoning_effort": "low"},
    "template kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
    "tools none": {"tools": TOOLS, "tool_choice": "none"},
    "tools auto": {"tools": TOOLS},
    "tools required": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 300},
    "tools required, cut": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 12},
    "tools named": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 200},
    "tools allowed": {
        "tools": TOOLS,
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
        "max_tokens": 200,
        "parallel_tool_calls": False,
    },
    "tool results": {
        "messages": [
            *USER,
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "clock", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "noon"},
        ]
    },
}
RESPONSE_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one token": {"max_output_tokens": 1},
    "instructions": {"instructions": "be brief", "metadata": {"a": "b"}, "user": "u", "store": True},
    "items": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "noon"},
        ]
    },
    "logprobs": {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    "schema": {
        "text": {"format": {"type": "json_schema", "name": "w", "schema": SCHEMA}, "verbosity": "low"},
        "max_output_tokens": 90,
    },
    "json_object": {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 40},
    "required": {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required", "max_output_tokens": 200},
    "seed": {"temperature": 1, "seed": 4, "top_p": 0.9, "top_k": 20, "priority": -1, "cache_salt": "s"},
    "reasoning": {"reasoning": {"effort": "low"}, "truncation": "auto", "parallel_tool_calls": False},
}
BAD: dict[str, list[Any]] = {
    "model": ["nobody", "", 3],
    "max_tokens": [-1, 0, "x", 1.5, 100_000, 10**30],
    "temperature": [-0.1, 2.1, "hot", True],
    "top_p": [-0.1, 1.1],
    "top_k": [-2, 0.5],
    "min_p": [2],
    "presence_penalty": [3],
    "frequency_penalty": [-3],
    "repetition_penalty": [0, 2.5],
    "logit_bias": [{"x": 1}, {"260": 1}, {"1": 101}, []],
    "seed": [2**63, 1.5],
    "n": [0, 129, "2"],
    "stop": [[""], ["x"] * 17, "x" * 4097, 5],
    "stop_token_ids": [[260], [-1], ["a"]],
    "min_tokens": [11, -1],
    "stream": ["yes", 1],
    "stream_options": [{"include_usage": True}, {"include_usage": 1}],
    "priority": [101, 1.5],
    "cache_salt": ["", "x" * 257],
    "timeout": [0, -1, "soon"],
    "prompt_logprobs": [-1, 21],
    "logprobs": [-1, 21, "many"],
    "regex": ["", "(", "(?=a)b"],
    "ebnf": ["", "start: nobody", "root ::= ("],
    "response_format": [
        {"type": "xml"},
        {"type": "json_schema"},
        {},
        "json",
        {"type": "json_object", "schema": {"type": "nothing"}},
        {"type": "json_object", "schema": False},
    ],
    "structured_outputs": [
        {},
        {"regex": "a", "choice": ["b"]},
        {"choice": []},
        {"choice": [""]},
        {"structural_tag": {}},
        {"json": "{"},
        {"json_object": False},
    ],
    "session_id": ["nobody", "a b", "", 1],
    "session_params": [{"id": "nobody"}, {}, {"id": "a", "offset": -2}],
    "best_of": [2],
    "echo": [1],
    "suffix": ["end"],
    "use_beam_search": [True],
    "stop_regex": ["a"],
    "functions": [[]],
    "modalities": [["audio"], ["text"]],
}
BAD_PROMPTS = {"prompt": [None, "", [], [[]], [""], [260], [-1], [1.5], ["a", 1], {"a": 1}, "x" * 5000, ["x"] * 1025]}
BAD_CHAT: dict[str, list[Any]] = {
    "messages": [
        None,
        [],
        "hi",
        [{"role": "nobody", "content": "a"}],
        [{"content": "a"}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": "x" * 5000}],
    ],
    "tools": [
        [{"type": "x"}],
        [TOOLS[0]] * 2,
        [{"type": "function", "function": {"name": "a b"}}],
        [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}],
        {},
    ],
    "tool_choice": ["required", "maybe", NAMED, {"type": "allowed_tools"}, {"type": "function"}, 5],
    "top_logprobs": [21, 2],
    "reasoning_effort": ["huge"],
    "max_completion_tokens": [-1, 5],
    "chat_template_kwargs": ["x"],
    "continue_final_message": [True],
    "audio": [{}],
}
BAD_RESPONSES: dict[str, list[Any]] = {
    "input": [
        None,
        "",
        [],
        [{"type": "nobody"}],
        [{"role": "user"}],
        [{"content": "a"}],
        [{"type": "function_call", "name": "a"}],
        [{"role": "user", "content": [{"type": "input_image"}]}],
    ],
    "max_output_tokens": [0, "x", 100_000],
    "previous_response_id": ["resp_1"],
    "background": [True],
    "stream_options": [{}],
    "messages": [USER],
    "n": [2],
    "conversation": ["c"],
    "session_id": ["s"],
    "tools": [[{"type": "web_search"}], [{"type": "function"}]],
    "include": [["nothing"]],
    "metadata": [{"a": 1}, {str(number): "x" for number in range(17)}],
    "text": [{"format": {"type": "xml"}}, {"format": {"type": "json_schema"}}],
    "truncation": ["sometimes"],
    "model": ["nobody"],
}


def openai_asks() -> list[Ask]:
    """All requests for a daemon without API keys."""
    both = {**SHARED, **COMPLETION_CASES}
    return [
        *whole_and_streamed(COMPLETIONS, COMPLETION, both),
        *whole_and_streamed(CHAT, CHATTING, {**SHARED, **CHAT_CASES}),
        *whole_and_streamed(RESPONSES, RESPONDING, RESPONSE_CASES),
        *_short_streams(),
        *cases(COMPLETIONS, COMPLETION, {"missing prompt": {"prompt": None}, "long answer": {"max_tokens": 4095}}),
        *each_value(COMPLETIONS, COMPLETION, BAD | BAD_PROMPTS),
        *each_value(CHAT, CHATTING, BAD | BAD_CHAT),
        *each_value(RESPONSES, RESPONDING, BAD_RESPONSES),
    ]


def _short_streams() -> list[Ask]:
    """Streams of one token, whose bytes do not depend on timing."""
    asks = []
    more: dict[str, dict[str, Any]] = {
        "plain": {},
        "usage": USAGE,
        "continuous": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        "n": {"n": 1, "return_token_ids": True},
        "id": {"rid": "my-own-id"},
    }
    for name, fields in more.items():
        short = {"max_tokens": 1, "stream": True, **fields}
        asks += [
            post(f"one token exactly, {name}", COMPLETIONS, {**COMPLETION, "logprobs": 1, **short}, exact=True),
            post(f"one token exactly, {name}", CHAT, {**CHATTING, "logprobs": True, **short}, exact=True),
        ]
    body = {**RESPONDING, "max_output_tokens": 1, "stream": True}
    return [*asks, post("one token exactly", RESPONSES, body, exact=True)]
