"""The chat route with the templates of several model families: from the request to the prompt and back."""

from __future__ import annotations

from typing import Any

import pytest

from ...chat_templates import MISTRAL
from ...conftest import World
from ..test_streams import events
from .conftest import MARK, PAD, Model
from .test_chat_tools import TOOLS, as_joined, joined

pytestmark = pytest.mark.anyio


async def both(parts: tuple[World, Model], text: str, **fields: Any) -> dict[str, Any]:
    """Return the parsed response for the output ``text``, which must be the same with and without stream."""
    world, model = parts
    model.text = text
    reply = await world.chat(**fields)
    assert reply.status_code == 200, reply.text
    message = as_joined(reply.json()["choices"][0])
    stream = await world.chat(stream=True, **fields)
    assert joined([chunk["choices"][0] for chunk in events(stream.text)[:-1]]) == message
    return message


async def test_a_prompt_that_opens_the_reasoning_begins_it(model: Any) -> None:
    opens = {"chat_template_kwargs": {"opens": True}}
    message = await both(model, "why 日</think>yes", **opens)
    assert (message["reasoning"], message["content"]) == ("why 日", "yes")
    assert model[1].prompt.endswith("<think>\n")


async def test_a_prompt_that_ends_the_reasoning_leaves_text(model: Any) -> None:
    message = await both(model, "yes</think>", reasoning_effort="none")
    assert (message["reasoning"], message["content"]) == ("", "yes</think>")
    assert model[1].prompt.endswith("</think>\n\n")


async def test_the_template_shows_tools_and_its_calls_are_read(model: Any) -> None:
    message = await both(model, '<tool_call>{"name": "clock", "arguments": {}}</tool_call>', tools=TOOLS)
    assert message["calls"] == [["clock", "{}"]]
    assert '"name": "weather"' in model[1].prompt


@pytest.mark.parametrize("template", [MISTRAL])
async def test_a_mark_that_is_a_control_token_is_read_and_no_other_is_shown(model: Any) -> None:
    text = f'a{PAD}b{MARK}[{{"name": "clock", "arguments": {{}}}}]{PAD}'
    message = await both(model, text, tools=TOOLS)
    assert (message["content"], message["calls"]) == ("ab", [["clock", "{}"]])
    assert (await both(model, text))["content"] == 'ab[{"name": "clock", "arguments": {}}]'


@pytest.mark.parametrize("template", [MISTRAL])
async def test_a_conversation_with_calls_continues(model: Any) -> None:
    world, scripted = model
    scripted.text = "fine"
    call = {
        "id": "call_" + "a1" * 12,
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "x"}'},
    }
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
    ]
    reply = await world.chat(messages=messages, tools=TOOLS)
    assert reply.status_code == 200, reply.text
    assert '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "x"}}]sunny' in scripted.prompt
