"""SmolLM2, whose chat template has no tool support, is forced to call functions: the arguments have the right types."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest

from ebbtide.tokenization.model_files import smollm2_path

from ..conftest import Api
from ..test_tools_http import as_collected, collected

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"]}
SUM = {
    "type": "object",
    "properties": {"first": {"type": "integer"}, "second": {"type": "integer"}},
    "required": ["first", "second"],
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather of a city", "parameters": CITY},
    },
    {"type": "function", "function": {"name": "get_time", "description": "The time in a city", "parameters": CITY}},
    {"type": "function", "function": {"name": "add", "description": "The sum of two numbers", "parameters": SUM}},
]
QUESTIONS = [
    "What is the weather in Paris?",
    "What time is it in Tokyo?",
    "What is 12 plus 30?",
    "Schreib ein Gedicht.",
]
CHOICES: list[Any] = ["required", {"type": "function", "function": {"name": "add"}}]


@pytest.mark.soak
@pytest.mark.skipif(not smollm2_path().is_file(), reason="the packaged model is not pulled")
@pytest.mark.parametrize("flags", [(), ("--test-retract-interval", "7")])
def test_a_small_model_makes_the_required_calls(start_daemon: Any, flags: tuple[str, ...]) -> None:
    daemon = start_daemon("--dtype", "float32", "--max-total-tokens", "8192", *flags, model="smollm2")
    api = Api(daemon.url)
    asked = list(product(QUESTIONS, CHOICES, [False, True]))

    def ask(case: tuple[str, Any, bool]) -> dict[str, Any]:
        question, choice, stream = case
        answer = api.openai.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": question}],
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=120,
            stream=stream,
        )
        return collected(answer) if stream else as_collected(answer)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, asked))
    assert answers[::2] == answers[1::2], "a stream says the same as the whole answer"
    for (_, choice, _), answer in zip(asked, answers, strict=True):
        assert answer["finish"] == ["tool_calls"]
        [[name, arguments]] = answer["calls"]
        values = json.loads(arguments)
        assert name in (["get_weather", "get_time", "add"] if choice == "required" else ["add"])
        assert set(values) == ({"first", "second"} if name == "add" else {"city"})
    api.close()
