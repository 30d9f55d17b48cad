"""Sessions over HTTP, and the expected answers of their turns."""

from __future__ import annotations

import itertools
from typing import Any

import httpx

PAGE = 16
_numbers = itertools.count()


class Session:
    """One session as its client knows it. tokens: those of all completed turns."""

    def __init__(self, api: Any, *, streaming: bool = True, **fields: Any) -> None:
        self.api = api
        self.id = f"test-{next(_numbers)}"
        self.tokens: list[int] = []
        reply = api.http.post("/v1/sessions", json={"session_id": self.id, "streaming": streaming, **fields})
        assert reply.status_code == 200, reply.text

    def ask(self, new: list[int], **sampling: Any) -> httpx.Response:
        """Send the next turn. Returns the reply, which may be an error."""
        params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True, **sampling}
        body = {"input_ids": new, "session_params": {"id": self.id}, "sampling_params": params}
        reply: httpx.Response = self.api.http.post("/generate", json=body)
        return reply

    def turn(self, new: list[int], **sampling: Any) -> dict[str, Any]:
        """Run a turn that must succeed, and check its context and its answer."""
        reply = self.ask(new, **sampling)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        self.tokens += new
        assert answer["meta_info"]["prompt_tokens"] == len(self.tokens)
        assert answer["output_ids"] == whole(self.api, self.tokens, **sampling), "not what the whole conversation says"
        self.tokens += answer["output_ids"]
        return answer

    def chat(self, *messages: dict[str, str], **fields: Any) -> httpx.Response:
        """A turn of chat messages."""
        body = {"session_id": self.id, "messages": messages, "temperature": 0, **fields}
        reply: httpx.Response = self.api.http.post("/v1/chat/completions", json=body)
        return reply

    def info(self) -> dict[str, Any]:
        """The server's description of the session."""
        reply = self.api.http.get(f"/v1/sessions/{self.id}")
        assert reply.status_code == 200, reply.text
        described: dict[str, Any] = reply.json()
        return described

    def close(self) -> None:
        """Close the session; it may be closed already."""
        assert self.api.http.delete(f"/v1/sessions/{self.id}").status_code == 200


def whole(api: Any, tokens: list[int], **sampling: Any) -> list[int]:
    """The answer to these tokens without a session."""
    params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True, **sampling}
    reply = api.http.post("/generate", json={"input_ids": tokens, "sampling_params": params})
    assert reply.status_code == 200, reply.text
    ids: list[int] = reply.json()["output_ids"]
    return ids


def code(reply: httpx.Response) -> tuple[int, str | None]:
    """Status and error code."""
    return reply.status_code, reply.json().get("error", {}).get("code")
