"""Sends one request to an OpenAI-compatible server, and records when its tokens arrive."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import msgspec

from ...errors import StartupError
from .workload import Job

# Maximum length of one line of a stream, and of an error response.
MAX_LINE_BYTES = 8 << 20
EXAMPLE_CHARS = 200


def authorization(api_key: str | None) -> dict[str, str]:
    """Return the Authorization header, or {} if there is no API key."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


@dataclass(frozen=True, slots=True)
class Target:
    """The server and the request parameters.

    Attributes:
        base_url: URL including /v1, without a slash at the end.
    """

    base_url: str
    model: str
    endpoint: Literal["chat", "completions"] = "chat"
    api_key: str | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    timeout_s: float = 600.0

    @property
    def url(self) -> str:
        """URL of the endpoint."""
        return f"{self.base_url}/{'chat/completions' if self.endpoint == 'chat' else 'completions'}"

    def body(self, job: Job) -> dict[str, Any]:
        """Return the request body without the streaming fields."""
        prompt: dict[str, Any] = {"prompt": job.prompt}
        if self.endpoint == "chat":
            prompt = {"messages": [{"role": "user", "content": job.prompt}]}
        body = {"model": self.model, **prompt, "max_tokens": job.max_tokens, "temperature": self.temperature}
        return {**body, "ignore_eos": True} if self.ignore_eos else body


@dataclass(slots=True)
class Outcome:
    """The result of one request. Times are ``time.perf_counter`` values, in seconds.

    Attributes:
        token_times: arrival times of the chunks with content.
        output_tokens: number of output tokens that the server reports; None if it reports none.
        error: kind of the failure; "" if the request succeeded.
        example: message of the failure; "" if there is none.
    """

    started: float
    ended: float = 0.0
    token_times: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str = ""
    example: str = ""

    @property
    def num_output_tokens(self) -> int:
        """The reported number of output tokens; the number of chunks with content if the server reports none."""
        return len(self.token_times) if self.output_tokens is None else self.output_tokens


class Failure(Exception):
    """A failed request.

    Attributes:
        kind: short description that is the same for all failures of one kind.
    """

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class Delta(msgspec.Struct):
    """The new content in a chunk of a chat completion."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct):
    """One choice of a chunk, from either endpoint."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        """True if the choice contains output. The first chunk of a chat completion contains only the role."""
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class PromptDetails(msgspec.Struct):
    """The field ``prompt_tokens_details`` of ``usage``."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """The field ``usage``: the server's token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Chunk(msgspec.Struct):
    """One event of a stream, or a complete answer, reduced to the fields that are measured."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


DECODER = msgspec.json.Decoder(Chunk)


def open_session(target: Target) -> aiohttp.ClientSession:
    """Return an HTTP client that opens a new connection for each request, without a limit on their number.

    llama-server closes the connection after a stream; another request on the same connection would count as an error.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        headers=authorization(target.api_key),
        timeout=aiohttp.ClientTimeout(total=target.timeout_s),
        read_bufsize=MAX_LINE_BYTES,
    )


async def send(session: aiohttp.ClientSession, target: Target, job: Job, started: float | None = None) -> Outcome:
    """Send one request and wait until it completes. Server and network errors are recorded in the outcome, not raised.

    started: ``time.perf_counter`` value from which latencies are measured; None for the time of the call.
    """
    outcome = Outcome(started=time.perf_counter() if started is None else started)
    try:
        await _stream(session, target, job, outcome)
    except Failure as failure:
        outcome.error, outcome.example = failure.kind, str(failure)
    except TimeoutError:
        outcome.error, outcome.example = "timeout", f"the answer did not end within {target.timeout_s:g} s"
    except aiohttp.ClientConnectorError as error:
        outcome.error, outcome.example = "cannot connect", str(error)
    except (aiohttp.ClientError, ConnectionError, ValueError) as error:
        outcome.error, outcome.example = "connection dropped", str(error) or type(error).__name__
    outcome.ended = time.perf_counter()
    return outcome


async def _stream(session: aiohttp.ClientSession, target: Target, job: Job, outcome: Outcome) -> None:
    body = {**target.body(job), "stream": True, "stream_options": {"include_usage": True}}
    async with session.post(target.url, json=body) as response:
        await _check_status(response)
        done = False
        async for payload in events(response.content):
            # [DONE] does not end the loop: the stream is read until the server ends the response.
            if payload == b"[DONE]":
                done = True
            else:
                _take(outcome, _decode(payload))
    if not done and outcome.finish_reason is None:
        raise Failure("connection dropped", "the stream ended before the answer was complete")


async def events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the payload of each ``data:`` line. Comments and other fields are skipped."""
    async for line in content:
        if line.startswith(b"data:"):
            yield line[5:].strip()


def _take(outcome: Outcome, chunk: Chunk) -> None:
    if chunk.error is not None:
        raise _failure("error in the stream", chunk.error)
    if any(choice.has_content for choice in chunk.choices):
        outcome.token_times.append(time.perf_counter())
    for choice in chunk.choices:
        outcome.finish_reason = choice.finish_reason or outcome.finish_reason
    if chunk.usage is not None:
        outcome.prompt_tokens = chunk.usage.prompt_tokens
        outcome.output_tokens = chunk.usage.completion_tokens
        details = chunk.usage.prompt_tokens_details
        outcome.cached_tokens = details.cached_tokens if details is not None else None


def _decode(payload: bytes) -> Chunk:
    try:
        return DECODER.decode(payload)
    except msgspec.MsgspecError as error:
        example = f"{error}: {payload[:EXAMPLE_CHARS].decode(errors='replace')}"
        raise Failure("invalid answer", example) from error


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    raise _failure(f"HTTP {response.status}", await json_error(response))


async def json_error(response: aiohttp.ClientResponse) -> Any:
    """Return the field ``error`` of an error response. Without it, return the JSON value; without JSON, the text."""
    text = (await response.content.read(MAX_LINE_BYTES)).decode(errors="replace")
    try:
        answer = json.loads(text)
    except ValueError:
        return text
    return answer.get("error", answer) if isinstance(answer, dict) else answer


def _failure(kind: str, error: Any) -> Failure:
    """Return a failure. Its kind includes the error code if the response has one."""
    if not isinstance(error, Mapping):
        return Failure(kind, str(error)[:EXAMPLE_CHARS])
    code = error.get("code")
    message = str(error.get("message") or error)[:EXAMPLE_CHARS]
    return Failure(f"{kind} {code}" if isinstance(code, str) else kind, message)


async def count_prompt_tokens(session: aiohttp.ClientSession, target: Target, job: Job) -> int | None:
    """Return the number of prompt tokens that the server reports; None if it reports none.

    Raises StartupError if the request fails.
    """
    try:
        async with session.post(target.url, json=target.body(job)) as response:
            await _check_status(response)
            answer = _decode(await response.read())
    except Failure as failure:
        raise StartupError(f"{target.url} rejects the first request with {failure.kind}: {failure}") from failure
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise unreachable(target.base_url, error) from error
    return answer.usage.prompt_tokens if answer.usage is not None else None


async def first_model(session: aiohttp.ClientSession, base_url: str) -> str:
    """Return the first model that the server lists. Raises StartupError if it lists none or the request fails."""
    url = f"{base_url}/models"
    try:
        async with session.get(url) as response:
            await _check_status(response)
            answer = await response.json(content_type=None)
    except Failure as failure:
        hint = "add /v1 to the base URL, or give --model" if failure.kind.startswith("HTTP 404") else str(failure)
        raise StartupError(f"{url} returned {failure.kind}: {hint.rstrip('.')}.") from failure
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise unreachable(base_url, error) from error
    except ValueError as error:
        raise StartupError(f"{url} did not return JSON: give --model.") from error
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise StartupError(f"{url} lists no model: give --model.") from error


def unreachable(base_url: str, error: BaseException) -> StartupError:
    """Return the error for an unreachable server."""
    reason = error.os_error.strerror if isinstance(error, aiohttp.ClientConnectorError) else str(error)
    return StartupError(f"No server is reachable at {base_url}: {reason or type(error).__name__}.")
