"""Tools in the turns of a session: described once, parsed in every turn that offers them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from transformers import AutoTokenizer

from ebbtide.config import ServerConfig
from ebbtide.messages import PoolInfo
from ebbtide.server.app import create_app
from ebbtide.server.parsers.chat_template_profile import probe_chat_template
from ebbtide.tokenization.model_files import smollm2_path
from ebbtide.tokenization.tokenizer import FastTokenizer, SimTokenizer, TextTokenizer
from ebbtide.tokenization.transformers_tokenizer import parts_of
from ebbtide.tokenizer_mgr.prompts import PromptReader

from ..chat_templates import TOOLS as OFFERED
from ..chat_templates import tokenizer_with
from ..conftest import INFO, ScriptedEngine, World, build_state
from .chat.test_chat_tools import CLOCK, TOOLS

pytestmark = pytest.mark.anyio

KNOWS_TOOLS = (
    OFFERED + "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Z"}}\n</tool_call>'
CALLED = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(text: str, call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


TURNS: list[tuple[list[dict[str, Any]], str]] = [  # new messages, and the output of the model
    ([user("How is it in Z?")], WEATHER),
    ([result("rain", "a")], "It rains."),
    ([user("And now?"), {"role": "assistant", "tool_calls": [CALLED]}, result("noon", "call_1")], CLOCK),
    ([result("one", "b"), user("So?")], "It is one."),
    ([user("Thanks!")], "Bye."),
]


def smollm2() -> TextTokenizer:
    path = smollm2_path()
    if not path.is_file():
        pytest.skip("the packaged model is not pulled")
    return FastTokenizer(parts_of(AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)))


TOKENIZERS: dict[str, Callable[[], TextTokenizer]] = {
    "sim": SimTokenizer,
    "smollm2": smollm2,
    "knows tools": lambda: tokenizer_with(KNOWS_TOOLS),
}


@pytest.fixture(params=["sim", pytest.param("smollm2", marks=pytest.mark.slow), "knows tools"])
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    return TOKENIZERS[request.param]()


@pytest.fixture
async def world(engine: ScriptedEngine, config: ServerConfig, tokenizer: TextTokenizer) -> AsyncIterator[World]:
    info = replace(INFO, context_length=8192, pools=(PoolInfo(512, 16),), vocab_size=tokenizer.vocab_size)
    reader = PromptReader(tokenizer, info)
    state = build_state(engine, config, info, prompts=reader, profile=probe_chat_template(tokenizer))
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield World(engine, state, client)
    state.prompts.close()
    state.structured.close()


def joined(tokens: list[int], continuation: list[int], head: int) -> list[int]:
    """Return the tokens of a session and of a further turn, joined as the scheduler joins them."""
    dropped = next((n for n in range(head, 0, -1) if tokens[-n:] == continuation[:n]), 0)
    return tokens + continuation[dropped:]


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be kind."}]], ids=["bare", "system"])
async def test_the_tools_of_every_turn_are_those_of_the_whole_conversation(
    world: World, tokenizer: TextTokenizer, system: list[dict[str, Any]]
) -> None:
    history: list[dict[str, Any]] = []
    tokens: list[int] = []
    for new, said in TURNS:
        new = new if tokens else [*system, *new]
        history += new
        world.engine.reply = said
        turn = await world.chat(session_id="s", messages=new, tools=TOOLS)
        whole = await world.chat(messages=history, tools=TOOLS)
        assert (turn.status_code, whole.status_code) == (200, 200), turn.text + whole.text
        asked, all_of_it = world.engine.requests[-2:]
        session = asked.session
        tokens = joined(tokens, session.continuation, session.head) if tokens else asked.prompt
        assert tokens == all_of_it.prompt
        message = turn.json()["choices"][0]["message"]
        assert functions(message) == functions(whole.json()["choices"][0]["message"])
        assert bool(functions(message)) == ("<tool_call>" in said)
        history.append(message)
        tokens = tokens + tokenizer.encode(said, add_special_tokens=False)


def functions(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls without their ids, which are random."""
    return [call["function"] for call in message.get("tool_calls") or ()]
