"""A conversation with a scripted server: the requests, and the behavior if the server refuses or is unreachable."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ebbtide.commands import chat_client
from ebbtide.commands.chat_client import Conversation, Lost, Refused, Settings, connect

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def refusal(status: int, code: str) -> tuple[int, str]:
    return status, code


@dataclass
class Script:
    """A server that answers chats with ``replies`` in turn, then with "yes": a text, a refusal, or "cut" or "error"."""

    replies: list[Any] = field(default_factory=list)
    opening: list[Any] = field(default_factory=list)
    chats: list[dict[str, Any]] = field(default_factory=list)
    opened: list[dict[str, Any]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, request: web.Request) -> web.Response:
        self.opened.append(await request.json())
        answer = self.opening.pop(0) if self.opening else None
        if isinstance(answer, tuple):
            return error(*answer)
        return web.json_response({"id": f"s{len(self.opened)}"})

    async def close(self, request: web.Request) -> web.Response:
        self.closed.append(request.match_info["id"])
        return web.json_response({})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.chats.append(await request.json())
        reply = self.replies.pop(0) if self.replies else "yes"
        if isinstance(reply, tuple):
            return error(*reply)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._events(response, reply)
        except ConnectionError:
            self.left.set()
        return response

    async def _events(self, response: web.StreamResponse, reply: str) -> None:
        await event(response, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for letter in "par" if reply in ("cut", "error") else reply:
            await event(response, {"choices": [{"delta": {"content": letter}}]})
        if reply == "cut":
            return
        if reply == "error":
            await event(response, {"error": {"message": "It was aborted.", "code": "aborted"}})
            return
        while reply == "endless":
            await event(response, {"choices": [{"delta": {"content": "."}}]})
        await event(response, {"choices": [{"delta": {}, "finish_reason": "stop"}]})
        details = {"cached_tokens": 7}
        await event(response, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3,
                                                       "prompt_tokens_details": details}})  # fmt: skip
        await response.write(b"data: [DONE]\n\n")


def error(status: int, code: str) -> web.Response:
    return web.json_response({"error": {"message": f"No: {code}.", "code": code}}, status=status)


async def event(response: web.StreamResponse, value: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")
    await asyncio.sleep(0)


@dataclass
class Talk:
    """The conversation, the text and the notes that it showed, and the server."""

    script: Script
    conversation: Conversation
    shown: list[str]
    notes: list[str]

    @property
    def sent(self) -> list[tuple[str | None, list[str]]]:
        """The session and the contents of the messages of each chat request."""
        return [
            (body.get("session_id"), [message["content"] for message in body["messages"]]) for body in self.script.chats
        ]


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest.fixture
async def talk(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Talk]:
    monkeypatch.setattr(chat_client, "RETRY_S", 0.01)
    script = Script()
    app = web.Application()
    app.router.add_post("/v1/sessions", script.open)
    app.router.add_delete("/v1/sessions/{id}", script.close)
    app.router.add_post("/v1/chat/completions", script.chat)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    shown: list[str] = []
    notes: list[str] = []
    async with connect("key") as http:
        told = Settings(base_url=f"http://127.0.0.1:{port}/v1", model="m", **settings)
        yield Talk(script, Conversation(http, told, shown.append, notes.append), shown, notes)
    await runner.cleanup()


async def test_only_what_is_new_is_sent_on_a_session(talk: Talk) -> None:
    turn = await talk.conversation.ask("a")
    await talk.conversation.ask("b")
    assert talk.sent == [("s1", ["a"]), ("s1", ["b"])]
    assert "".join(talk.shown) == "yesyes"
    assert (turn.text, turn.prompt_tokens, turn.reused_tokens, turn.output_tokens) == ("yes", 9, 7, 3)
    assert 0 < turn.first_token_s <= turn.total_s
    await talk.conversation.close()
    await talk.conversation.close()
    assert talk.script.closed == ["s1"]


@pytest.mark.parametrize("settings", [{"system": "Be brief.", "max_tokens": 5, "temperature": 0.5}])
async def test_the_system_message_comes_first_and_once(talk: Talk) -> None:
    await talk.conversation.ask("a")
    await talk.conversation.ask("b")
    assert talk.sent == [("s1", ["Be brief.", "a"]), ("s1", ["b"])]
    assert {(body["max_tokens"], body["temperature"]) for body in talk.script.chats} == {(5, 0.5)}
    await talk.conversation.start_anew()
    await talk.conversation.ask("c")
    assert talk.sent[-1] == ("s2", ["Be brief.", "c"])
    assert talk.script.closed == ["s1"]


@pytest.mark.parametrize("code", ["session_not_found", "session_closed"])
async def test_a_lost_session_is_opened_again_with_all_that_was_said(talk: Talk, code: str) -> None:
    talk.script.replies = ["one", refusal(404, code), "two"]
    await talk.conversation.ask("a")
    turn = await talk.conversation.ask("b")
    assert turn.text == "two"
    assert talk.sent == [("s1", ["a"]), ("s1", ["b"]), ("s2", ["a", "one", "b"])]
    await talk.conversation.ask("c")
    assert talk.sent[-1] == ("s2", ["c"])


async def test_a_turn_that_is_about_to_end_is_waited_for(talk: Talk) -> None:
    talk.script.replies = [refusal(409, "session_busy")] * 3
    assert (await talk.conversation.ask("a")).text == "yes"
    assert len(talk.sent) == 4


async def test_a_template_without_sessions_gets_the_whole_conversation(talk: Talk) -> None:
    talk.script.replies = [refusal(400, "session_chat_unsupported")]
    await talk.conversation.ask("a")
    await talk.conversation.ask("b")
    assert talk.sent[1:] == [(None, ["a"]), (None, ["a", "yes", "b"])]
    assert talk.script.closed == ["s1"]
    assert len(talk.notes) == 1


async def test_without_streaming_sessions_a_plain_session_is_used(talk: Talk) -> None:
    talk.script.opening = [refusal(400, "streaming_sessions_off")]
    await talk.conversation.ask("a")
    assert talk.script.opened == [{}, {"streaming": False}]
    assert talk.sent == [("s2", ["a"])]


@pytest.mark.parametrize("answer", [refusal(404, ""), refusal(429, "too_many_sessions")])
async def test_without_any_session_the_whole_conversation_is_sent(talk: Talk, answer: tuple[int, str]) -> None:
    talk.script.opening = [answer]
    await talk.conversation.ask("a")
    await talk.conversation.ask("b")
    assert talk.sent == [(None, ["a"]), (None, ["a", "yes", "b"])]
    assert len(talk.script.opened) == 1


@pytest.mark.parametrize("settings", [{"wants_session": False}])
async def test_no_session_is_opened_when_none_is_wanted(talk: Talk) -> None:
    await talk.conversation.ask("a")
    await talk.conversation.ask("b")
    assert (talk.script.opened, talk.sent[-1]) == ([], (None, ["a", "yes", "b"]))


@pytest.mark.parametrize(
    "loss", ["cut", refusal(503, "draining"), refusal(500, "engine_dead"), refusal(502, "")], ids=str
)
async def test_a_request_is_repeated_if_the_server_was_unreachable(talk: Talk, loss: Any) -> None:
    talk.script.replies = ["one", loss, loss, "two"]
    await talk.conversation.ask("a")
    assert (await talk.conversation.ask("b")).text == "two"
    assert talk.sent[1:] == [("s1", ["b"])] * 3, "its session may still be there"
    assert ["waiting" in note for note in talk.notes].count(True) == 1, "it is said once"


async def test_the_shown_part_of_a_lost_answer_is_a_line_of_its_own(talk: Talk) -> None:
    talk.script.replies = ["cut", "cut", "two", "error"]
    assert (await talk.conversation.ask("a")).text == "two"
    assert "".join(talk.shown) == "par\npar\ntwo"
    assert ["was cut off" in note for note in talk.notes].count(True) == 2
    with pytest.raises(Refused):
        await talk.conversation.ask("b")
    assert "".join(talk.shown).endswith("twopar\n")
    talk.script.replies = [refusal(400, "no")]
    with pytest.raises(Refused):
        await talk.conversation.ask("c")
    assert "".join(talk.shown).endswith("twopar\n"), "nothing of it was shown"


async def test_a_lost_connection_is_reported_without_the_message_of_a_library(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.asynccontextmanager
    async def lose(*_: Any, **__: Any) -> AsyncIterator[Any]:
        raise aiohttp.ClientOSError(None, "Can not write request body for http://x")
        yield

    monkeypatch.setattr(chat_client, "AWAY_S", 0.0)
    monkeypatch.setattr(aiohttp.ClientSession, "post", lose)
    with pytest.raises(Lost) as lost:
        await talk.conversation.ask("a")
    assert str(lost.value) == "The connection was lost"


async def test_the_chat_ends_if_the_server_stays_unreachable(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "AWAY_S", 0.05)
    talk.script.replies = ["cut"] * 1000
    with pytest.raises(Lost):
        await talk.conversation.ask("a")


@pytest.mark.parametrize("no", [refusal(400, "context_length_exceeded"), refusal(429, "queue_full"), "error"], ids=str)
async def test_a_refused_question_is_not_part_of_the_conversation(talk: Talk, no: Any) -> None:
    talk.script.replies = ["one", no, refusal(404, "session_not_found"), "two"]
    await talk.conversation.ask("a")
    with pytest.raises(Refused):
        await talk.conversation.ask("b")
    await talk.conversation.ask("c")
    assert talk.sent[-1] == ("s2", ["a", "one", "c"])


async def test_a_stopped_answer_closes_its_connection_and_is_discarded(talk: Talk) -> None:
    talk.script.replies = ["endless", refusal(404, "session_not_found")]
    asking = asyncio.create_task(talk.conversation.ask("a"))
    while "." not in talk.shown:
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.wait_for(talk.script.left.wait(), 10)
    assert talk.shown[-1] == "\n"
    await talk.conversation.ask("b")
    assert talk.sent[-1] == ("s2", ["b"])
