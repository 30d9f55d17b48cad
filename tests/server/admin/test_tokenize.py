"""Tokenization and detokenization over HTTP."""

from __future__ import annotations

import httpx
import pytest

from ..conftest import World

pytestmark = pytest.mark.anyio

HI = [104, 105]
CHAT = [{"role": "user", "content": "hi"}]


async def post(world: World, path: str, **body: object) -> httpx.Response:
    return await world.client.post(path, json=body)


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_text_round_trips_through_its_tokens(world: World, prefix: str) -> None:
    reply = await post(world, f"{prefix}/tokenize", prompt="hi", model="org/sim")
    assert reply.json() == {"tokens": HI, "count": 2, "max_model_len": 512}
    back = await post(world, f"{prefix}/detokenize", tokens=HI)
    assert back.json() == {"text": "hi", "prompt": "hi"}


async def test_several_texts_at_once(world: World) -> None:
    reply = await post(world, "/tokenize", prompt=["hi", "", "é"], return_token_strs=True)
    assert reply.json() == {
        "tokens": [HI, [], [195, 169]],
        "count": [2, 0, 2],
        "max_model_len": 512,
        "token_strs": [["h", "i"], [], ["\ufffd", "\ufffd"]],
    }
    back = await post(world, "/detokenize", tokens=[HI, [], [195, 169]])
    assert back.json()["text"] == ["hi", "", "é"]
    assert (await post(world, "/detokenize", tokens=[])).json()["text"] == ""


async def test_a_chat_is_tokenized_like_a_chat_request(world: World) -> None:
    await world.chat(messages=CHAT)
    assert (await post(world, "/tokenize", messages=CHAT)).json()["tokens"] == world.engine.requests[0].prompt
    shorter = (await post(world, "/tokenize", messages=CHAT, add_generation_prompt=False)).json()
    assert shorter["count"] == len(world.engine.requests[0].prompt) - 1


async def test_tools_are_part_of_the_tokenized_prompt(world: World) -> None:
    tools = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}]
    tokens = (await post(world, "/tokenize", messages=CHAT, tools=tools)).json()["tokens"]
    text = (await post(world, "/detokenize", tokens=tokens)).json()["text"]
    assert '"tide"' in text
    assert text.endswith("hi")


async def test_special_tokens_are_omitted_by_default(world: World) -> None:
    assert (await post(world, "/detokenize", tokens=[256, *HI])).json()["text"] == "hi"
    shown = await post(world, "/detokenize", tokens=[256, *HI], skip_special_tokens=False)
    assert shown.json()["text"] == "<|end|>hi"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": "x", "messages": CHAT},
        {"prompt": 7},
        {"prompt": []},
        {"prompt": ["x", 7]},
        {"prompt": ["x"] * 1025},
        {"prompt": "x" * 100_000},
        {"prompt": "x", "add_generation_prompt": True},
        {"messages": []},
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"messages": CHAT, "add_special_tokens": True},
        {"messages": CHAT, "tools": [{}]},
        {"prompt": "x", "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"messages": CHAT, "chat_template_kwargs": {"chat_template": "x"}},
        {"messages": CHAT, "continue_final_message": True},
    ],
)
async def test_bad_requests_to_tokenize_are_refused(world: World, body: dict[str, object]) -> None:
    reply = await post(world, "/tokenize", **body)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "tokens", [None, "x", [99999999], [-1], [1.0], [True], [[1], 2], [[[1]]], [[260]], [[1]] * 1025]
)
async def test_bad_ids_are_refused(world: World, tokens: object) -> None:
    assert (await post(world, "/detokenize", tokens=tokens)).status_code == 400


async def test_an_unknown_model_is_404(world: World) -> None:
    for path, field in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert (await post(world, path, model="other", **field)).status_code == 404


async def test_tokenize_works_without_the_engine(world: World) -> None:
    world.state.liveness.start_draining()
    assert (await post(world, "/tokenize", prompt="hi")).status_code == 200


async def test_the_tokenizers_special_tokens_are_shown(world: World) -> None:
    shown = (await world.client.get("/tokenizer_info")).json()
    assert shown == {
        "tokenizer_class": "SimTokenizer",
        "bos_token": None,
        "eos_token": "<|end|>",
        "unk_token": None,
        "pad_token": None,
        "chat_template": None,
        "model_max_length": 512,
    }
