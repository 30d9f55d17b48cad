"""Sessions of a daemon as their clients see them, and what their turns must say."""

from __future__ import annotations

import itertools
from typing import Any

import httpx

PAGE = 16
_numbers = itertools.count()


class Session:
    """One session and what its client knows of it. tokens: of all turns that ended well."""

    def __init__(self, api: Any, *, streaming: bool = True, **fields: Any) -> None:
        self.api = api
        self.id = f"test-{next(_numbers)}"
        self.tokens: list[int] = []
        reply = api.http.post("/v1/sessions", json={"session_id": self.id, "streaming": streaming, **fields})
        assert reply.status_code == 200, reply.text

    def ask(self, new: list[int], **sampling: Any) -> httpx.Response:
        """The next turn's reply, whatever it is."""
        params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True, **sampling}
        body = {"input_ids": new, "session_params": {"id": self.id}, "sampling_params": params}
        reply: httpx.Response = self.api.http.post("/generate", json=body)
        return reply

    def turn(self, new: list[int], **sampling: Any) -> dict[str, Any]:
        """A turn that must end well, with the context and the answer that it must have."""
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
        """How the server describes it."""
        reply = self.api.http.get(f"/v1/sessions/{self.id}")
        assert reply.status_code == 200, reply.text
        described: dict[str, Any] = reply.json()
        return described

    def close(self) -> None:
        """Close it; also a second time."""
        assert self.api.http.delete(f"/v1/sessions/{self.id}").status_code == 200


def whole(api: Any, tokens: list[int], **sampling: Any) -> list[int]:
    """What the server says to these tokens without any session."""
    params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True, **sampling}
    reply = api.http.post("/generate", json={"input_ids": tokens, "sampling_params": params})
    assert reply.status_code == 200, reply.text
    ids: list[int] = reply.json()["output_ids"]
    return ids


def code(reply: httpx.Response) -> tuple[int, str | None]:
    """Status and error code."""
    return reply.status_code, reply.json().get("error", {}).get("code")
