"""The chat route with the templates of several model families: from the request to the prompt and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from msgspec import structs

from ebbtide.config import ServerConfig
from ebbtide.detokenizer.pieces import Pieces
from ebbtide.detokenizer.stream import TextStream
from ebbtide.messages import GenerateReq, StreamStart, TextBatch, TextItem
from ebbtide.server.app import create_app
from ebbtide.server.parsers.chat_template_profile import probe_chat_template
from ebbtide.tokenization.tokenizer import FastTokenizer
from ebbtide.tokenizer_mgr.prompts import PromptReader

from ...chat_templates import HERMES, MISTRAL, tokenizer_with
from ...conftest import INFO, ScriptedEngine, World, build_state
from ..test_streams import events
from .test_chat_tools import TOOLS, as_joined, joined

pytestmark = pytest.mark.anyio

PAD, MARK = "<|pad|>", "[TOOL_CALLS]"


class Model:
    """Generates ``text`` for every request, through a real detokenizer, one token at a time."""

    def __init__(self, tokenizer: FastTokenizer, engine: ScriptedEngine) -> None:
        self.text = ""
        self.prompt = ""
        self._tokenizer = tokenizer
        self._engine = engine
        engine.answer = self.answer

    def answer(self, request: GenerateReq) -> None:
        """Return the scripted tokens as text, with the control tokens that the request shows."""
        pieces = Pieces(self._tokenizer.vocabulary)
        self.prompt = pieces.joined(request.prompt, skip_special=False).decode()
        ids = self._tokenizer.encode(self.text, add_special_tokens=False)
        for rid in request.rids:
            stream = TextStream(pieces, StreamStart(request.text, [], 0))
            for number, token in enumerate(ids, 1):
                last = number == len(ids)
                text = stream.push([token]).text + (stream.flush() if last else "")
                item = TextItem(rid, text, [token], number, finish="stop" if last else None)
                assert self._engine.manager is not None
                self._engine.manager.handle(TextBatch([item]))


@pytest.fixture
def template() -> str:
    return HERMES


@pytest.fixture
async def model(template: str, engine: ScriptedEngine, config: ServerConfig) -> AsyncIterator[tuple[World, Model]]:
    tokenizer = tokenizer_with(template, ("<|end|>", PAD, MARK))
    info = structs.replace(INFO, context_length=8192, num_pages=512, vocab_size=tokenizer.vocab_size)
    state = build_state(engine, config, info, profile=probe_chat_template(tokenizer))
    state.prompts.close()
    state = replace(state, prompts=PromptReader(tokenizer, info))
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield World(engine, state, client), Model(tokenizer, engine)
    state.prompts.close()


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
async def test_a_conversation_with_calls_goes_on(model: Any) -> None:
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
