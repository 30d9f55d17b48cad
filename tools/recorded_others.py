"""Recorded requests of the routes that are not OpenAI's, of malformed HTTP, and of sessions."""

from __future__ import annotations

from typing import Any

from recorded_cases import Ask, cases, each_value, post, whole_and_streamed
from recorded_openai import SCHEMA, TOOLS, USER

GENERATE, MESSAGES, COUNT = "/generate", "/v1/messages", "/v1/messages/count_tokens"
SAMPLING = {"max_new_tokens": 10, "temperature": 0, "ignore_eos": True}
GENERATING = {"text": "tide", "sampling_params": SAMPLING}
SAYING = {"messages": USER, "max_tokens": 10, "temperature": 0}
TOOL = {"name": "weather", "description": "Looks.", "input_schema": SCHEMA}


def sampled(**fields: Any) -> dict[str, Any]:
    """Sampling fields in addition to the usual ones."""
    return {"sampling_params": {**SAMPLING, **fields}}


GENERATE_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ids": {"text": None, "input_ids": [116, 105]},
    "batch": {"text": ["one", "two"]},
    "batch of ids": {"text": None, "input_ids": [[65], [66, 67]], "rid": ["first", "second"]},
    "n": sampled(n=2, temperature=1, sampling_seed=3),
    "own id": {"rid": "mine"},
    "logprobs": {"return_logprob": True},
    "logprobs of all": {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2},
    "logprobs with text": {"return_logprob": True, "logprob_start_len": 2, "return_text_in_logprobs": True},
    "logprobs of a batch": {"text": ["a", "b"], "return_logprob": [True, False], "top_logprobs_num": [1, 0]},
    "batch of sampling": {"text": ["a", "b"], "sampling_params": [SAMPLING, {**SAMPLING, "max_new_tokens": 3}]},
    "stop": sampled(stop=["T|"]),
    "stop kept": sampled(stop="T|", no_stop_trim=True),
    "stop ids": sampled(stop_token_ids=[73]),
    "penalties": sampled(presence_penalty=1, frequency_penalty=1, repetition_penalty=1.5),
    "min tokens": sampled(min_new_tokens=4, ignore_eos=False, stop=["|"]),
    "regex": sampled(regex="[a-c]{3}"),
    "ebnf": sampled(ebnf='root ::= "a" "b"'),
    "json_schema": sampled(json_schema='{"type": "integer", "minimum": 10, "maximum": 99}'),
    "top": sampled(top_k=5, top_p=0.5, min_p=0.1, temperature=1, sampling_seed=2),
    "salt": {"extra_key": "k", "priority": 3},
    "no sampling": {"sampling_params": sampled(ignore_eos=True)["sampling_params"] | {"max_new_tokens": 1}},
}
MESSAGE_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one token": {"max_tokens": 1},
    "system": {"system": "be brief", "metadata": {"user_id": "u"}},
    "blocks": {
        "system": [{"type": "text", "text": "be"}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
                ],
            }
        ],
    },
    "begun": {"messages": [*USER, {"role": "assistant", "content": "be"}]},
    "stop": {"stop_sequences": ["a", "e", "i", "t", "T", "|", "1", "2"], "max_tokens": 200},
    "tools any": {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 200},
    "tools named": {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 200},
    "tools auto": {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "tool results": {
        "tools": [TOOL],
        "messages": [
            *USER,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "x"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "sun"}]},
        ],
    },
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    "schema": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "max_tokens": 90},
}
BAD_GENERATE: dict[str, list[Any]] = {
    "text": [None, "", [], [""], 5, "x" * 5000],
    "input_ids": [[1]],
    "sampling_params": [
        {"max_tokens": 1},
        {"max_new_tokens": -1},
        {"n": 0},
        {"regex": "a", "ebnf": "b"},
        "x",
        {"stop_regex": "a"},
        {"temperature": 3},
        {"max_new_tokens": 0},
        {"json_schema": "{"},
        [{}, {}],
    ],
    "rid": [["a", "b"], 5, ""],
    "return_logprob": [[True, False], "x"],
    "top_logprobs_num": [21],
    "logprob_start_len": [-2, 99],
    "image_data": ["x"],
    "lora_path": ["x"],
    "return_hidden_states": [True],
    "priority": [101],
    "model": ["nobody"],
    "session_params": [{"id": "nobody"}, {"rid": "x"}],
    "session_id": ["nobody"],
}
BAD_MESSAGES: dict[str, list[Any]] = {
    "messages": [
        None,
        [],
        "x",
        [{"role": "tool", "content": "a"}],
        [{"role": "user", "content": [{"type": "image", "source": {}}]}],
        [{"role": "user", "content": [{"type": "tool_result"}]}],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": "x" * 5000}],
    ],
    "max_tokens": [None, 0, "x", 100_000],
    "temperature": [1.5],
    "tools": [[{"name": "a"}], [{"name": "a", "type": "bash_20250124"}]],
    "tool_choice": [{"type": "tool"}, {"type": "x"}, {"type": "any"}],
    "thinking": [{"type": "x"}],
    "container": ["x"],
    "session_id": ["x"],
    "model": ["nobody"],
    "stop_sequences": [[""], "x"],
}
TOKENIZE_CASES: dict[str, dict[str, Any]] = {
    "text": {"prompt": "tide 🌊"},
    "texts": {"prompt": ["a", "bc"], "return_token_strs": True},
    "no marks": {"prompt": "a", "add_special_tokens": False},
    "chat": {"messages": USER, "return_token_strs": True},
    "chat with tools": {"messages": USER, "tools": TOOLS, "add_generation_prompt": False},
    "nothing": {},
    "both": {"prompt": "a", "messages": USER},
    "empty": {"prompt": ""},
    "none": {"prompt": []},
    "wrong": {"prompt": 5},
    "unknown model": {"prompt": "a", "model": "nobody"},
    "chat only": {"prompt": "a", "tools": TOOLS},
    "marks of a chat": {"messages": USER, "add_special_tokens": True},
}
DETOKENIZE_CASES: dict[str, dict[str, Any]] = {
    "ids": {"tokens": [116, 105]},
    "lists": {"tokens": [[65], [66]]},
    "half": {"tokens": [240, 159]},
    "special": {"tokens": [65, 256]},
    "special shown": {"tokens": [65, 256], "skip_special_tokens": False},
    "none": {"tokens": []},
    "out of range": {"tokens": [260]},
    "wrong": {"tokens": ["a"]},
    "missing": {},
}


def dialect_asks() -> list[Ask]:
    """The other APIs."""
    good = {name: fields for name, fields in GENERATE_CASES.items() if "batch" not in name}
    batches = {name: fields for name, fields in GENERATE_CASES.items() if "batch" in name}
    short = {**GENERATING, **sampled(max_new_tokens=1), "stream": True}
    return [
        *whole_and_streamed(GENERATE, GENERATING, good),
        *cases(GENERATE, GENERATING, batches),
        post("batch (stream)", GENERATE, {**GENERATING, "text": ["one", "two"], "stream": True}),
        post("one token exactly", GENERATE, {**short, "rid": "exact"}, exact=True),
        *whole_and_streamed(MESSAGES, SAYING, MESSAGE_CASES),
        post("one token exactly", MESSAGES, {**SAYING, "max_tokens": 1, "stream": True}, exact=True),
        *cases(
            COUNT,
            {"messages": USER},
            {
                "plain": {},
                "tools": {"tools": [TOOL]},
                "system": {"system": "x"},
                "wrong": {"messages": 5},
                "unknown model": {"model": "nobody"},
            },
        ),
        *each_value(GENERATE, GENERATING, BAD_GENERATE),
        *each_value(MESSAGES, SAYING, BAD_MESSAGES),
        *(ask for path in ("/tokenize", "/v1/tokenize") for ask in cases(path, {}, TOKENIZE_CASES)),
        *(ask for path in ("/detokenize", "/v1/detokenize") for ask in cases(path, {}, DETOKENIZE_CASES)),
    ]
