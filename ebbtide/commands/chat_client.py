"""One conversation with a server over HTTP, in a session if the server supports sessions.

The client also keeps the conversation, to send it again if the server loses the session or restarts. The module does
not use the terminal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from .bench_load.client import DECODER, MAX_LINE_BYTES, Chunk, Usage, authorization, events, json_error

RETRY_S = 0.2
BUSY_S = 10.0  # seconds to wait for the end of an interrupted turn
AWAY_S = 120.0  # seconds to wait for an unavailable server
AWAY_STATUSES = (502, 503, 504)  # the server is starting or draining, or a proxy has no backend


class Refused(Exception):
    """The server rejected the request.

    Attributes:
        status: HTTP status; 200 for an error in a stream.
        code: error code; "" if there is none.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Lost(Exception):
    """The server is unavailable, or the connection broke before the answer was complete."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The target and the parameters of a conversation. For a parameter that is None, the server's default applies.

    Attributes:
        base_url: URL including /v1.
    """

    base_url: str
    model: str
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    wants_session: bool = True

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that are the same in every request."""
        chosen = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        given = {name: value for name, value in chosen.items() if value is not None}
        return {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **given}


@dataclass(slots=True)
class ChatTurn:
    """One answer and its costs.

    Times are in seconds since the question was sent, and include the time during which the server was unavailable.
    """

    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    reused_tokens: int = 0
    output_tokens: int = 0
    first_token_s: float = 0.0
    total_s: float = 0.0


class Conversation:
    """Asks questions and keeps the history.

    ``show`` is called with the answer's text as it arrives, ``note`` with other information for the user.
    """

    def __init__(
        self, http: aiohttp.ClientSession, settings: Settings, show: Callable[[str], None], note: Callable[[str], None]
    ) -> None:
        self.session_id: str | None = None
        self.turns: list[ChatTurn] = []
        self._http = http
        self._settings = settings
        self._show = show
        self._note = note
        self._wants_session = settings.wants_session
        self._messages: list[dict[str, str]] = []
        self._begin()

    def _begin(self) -> None:
        self._messages = [{"role": "system", "content": self._settings.system}] if self._settings.system else []
        self.turns = []

    async def ask(self, question: str) -> ChatTurn:
        """Return the answer to the next question. If the call is cancelled or raises, the conversation is unchanged.

        Raises Refused if the server rejects the request, Lost if it has been unavailable for ``AWAY_S`` seconds.
        """
        began = time.monotonic()
        message = {"role": "user", "content": question}
        waits = False
        while True:
            try:
                turn = await self._turn(message, began)
                break
            except Lost as error:
                if time.monotonic() - began > AWAY_S:
                    raise
                if not waits:
                    self._note(f"{error}: waiting until the server is available again.")
                waits = True
                await asyncio.sleep(RETRY_S)
            except Refused as error:
                await self._recover(error, began)
        self._messages += [message, {"role": "assistant", "content": turn.text}]
        self.turns.append(turn)
        return turn

    async def start_anew(self) -> None:
        """Start a new conversation."""
        await self.close()
        self._begin()

    async def describe(self) -> dict[str, Any]:
        """Return the server's description of the session.

        Raises Refused if the server rejects the request, or Lost if it is unavailable.
        """
        return await self._call("GET", f"/sessions/{self.session_id}")

    async def close(self) -> None:
        """Close the session. If the server is not reachable, only notes that the session expires by itself."""
        session_id, self.session_id = self.session_id, None
        if session_id is not None:
            try:
                await self._call("DELETE", f"/sessions/{session_id}")
            except (Refused, Lost):
                self._note("The session could not be closed; it expires by itself.")

    async def _turn(self, message: dict[str, str], began: float) -> ChatTurn:
        """Send the question once. In an open session, only the new message is sent."""
        goes_on = self.session_id is not None
        if self._wants_session and not goes_on:
            await self._open()
        body = {**self._settings.fields, "messages": [message] if goes_on else [*self._messages, message]}
        if self.session_id is not None:
            body["session_id"] = self.session_id
        turn = ChatTurn()
        try:
            async for chunk in self._stream(body):
                self._take(turn, chunk, began)
        except (Refused, Lost, asyncio.CancelledError) as error:
            self._end_part(turn, told=not isinstance(error, asyncio.CancelledError))
            raise
        turn.total_s = time.monotonic() - began
        return turn

    def _take(self, turn: ChatTurn, chunk: Chunk, began: float) -> None:
        for choice in chunk.choices:
            if choice.has_content and not turn.first_token_s:
                turn.first_token_s = time.monotonic() - began
            if choice.delta is not None:
                turn.text += choice.delta.content or ""
                self._show(choice.delta.content or choice.delta.reasoning_content or "")
            turn.finish_reason = choice.finish_reason or turn.finish_reason
        if chunk.usage is not None:
            _count(turn, chunk.usage)

    def _end_part(self, turn: ChatTurn, *, told: bool) -> None:
        """End the output line of a partial answer. told: True to note that the answer is discarded."""
        if turn.first_token_s:
            self._show("\n")
            if told:
                self._note("The answer was cut off; the text shown is discarded.")

    async def _recover(self, error: Refused, began: float) -> None:
        """Prepare a retry after ``error``. Re-raises the error if a retry cannot succeed."""
        if error.code in ("session_not_found", "session_closed") and self.session_id is not None:
            self.session_id = None
            self._note("The session was lost: sending the whole conversation again.")
        elif error.code == "session_busy" and time.monotonic() - began < BUSY_S:
            await asyncio.sleep(RETRY_S)  # the interrupted turn will end soon
        elif error.code == "session_chat_unsupported" and self._wants_session:
            await self.close()
            self._wants_session = False
            self._note(f"{error} Continuing without a session.")
        else:
            raise error

    async def _open(self) -> None:
        """Open a session of the kind that the server supports: streaming, else plain.

        If no session can be opened, every request contains the full history.
        """
        try:
            self.session_id = (await self._call("POST", "/sessions", {}))["id"]
        except Refused as error:
            if error.code == "streaming_sessions_off":
                self.session_id = (await self._call("POST", "/sessions", {"streaming": False}))["id"]
            else:
                self._wants_session = False
                self._note(f"No session is available ({error}): sending the whole conversation each time.")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[Chunk]:
        whole = False
        try:
            async with self._http.post(f"{self._settings.base_url}/chat/completions", json=body) as response:
                await _check(response)
                async for payload in events(response.content):
                    if payload == b"[DONE]":
                        whole = True
                        continue
                    chunk = DECODER.decode(payload)
                    if chunk.error is not None:
                        raise _refusal(200, chunk.error)
                    yield chunk
        except msgspec.MsgspecError as error:
            raise Lost("The server sent an invalid answer") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Lost("The connection was lost") from error
        if not whole:
            raise Lost("The stream ended before the answer was complete")

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            async with self._http.request(method, f"{self._settings.base_url}{path}", json=body) as response:
                await _check(response)
                answer: dict[str, Any] = await response.json(content_type=None)
                return answer
        except ValueError as error:
            raise Lost("The server sent an invalid answer") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Lost("The connection was lost") from error


def connect(api_key: str | None) -> aiohttp.ClientSession:
    """Return an HTTP client without a timeout for answers."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    return aiohttp.ClientSession(headers=authorization(api_key), timeout=timeout, read_bufsize=MAX_LINE_BYTES)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        raise _refusal(response.status, await json_error(response))


def _refusal(status: int, error: Any) -> Refused | Lost:
    if not isinstance(error, dict) or "message" not in error:
        error = {"message": str(error)[:200]}
    message, code = str(error.get("message")), str(error.get("code") or "")
    if status in AWAY_STATUSES or code in ("engine_dead", "draining"):
        return Lost(message.rstrip("."))
    return Refused(status, code, message)


def _count(turn: ChatTurn, usage: Usage) -> None:
    turn.prompt_tokens = usage.prompt_tokens or 0
    turn.output_tokens = usage.completion_tokens or 0
    turn.reused_tokens = (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0
