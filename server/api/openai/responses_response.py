"""The response of POST /v1/responses: one object, or the typed events that build it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.response_stream import Delta

from ...http.streaming import Framing
from ...parsers.content_parts import ContentPart, Kind
from ...parsers.output_parser import OutputParsers, ParsedDelta
from ..chat.prepared_chat import PreparedChat
from ..logprobs import chat_logprobs
from ..usage import UsageCount
from .responses_request import ResponsesBody

Event = dict[str, Any]


@dataclass(slots=True)
class _Item:
    """One output item with the content received so far. The text of a call is its arguments."""

    kind: Kind
    id: str
    call_id: str | None = None
    name: str | None = None
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    status: str = "in_progress"

    def shown(self, *, empty: bool = False) -> dict[str, Any]:
        """Return the item in the format of the API. empty: leave out the content, for the first event of the item."""
        head = {"id": self.id, "status": self.status}
        parts = [] if empty else [self.part()]
        if self.kind is Kind.TEXT:
            return {**head, "type": "message", "role": "assistant", "content": parts}
        if self.kind is Kind.REASONING:
            return {**head, "type": "reasoning", "summary": [], "content": parts}
        return {**head, "type": "function_call", "call_id": self.call_id, "name": self.name, "arguments": self.text}

    def part(self) -> dict[str, Any]:
        """Return the only part of its content."""
        if self.kind is Kind.REASONING:
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.logprobs)}


PREFIXES = {Kind.TEXT: "msg_", Kind.REASONING: "rs_", Kind.CALL: "fc_"}
EVENTS = {Kind.TEXT: "output_text", Kind.REASONING: "reasoning_text", Kind.CALL: "function_call_arguments"}


class ResponsesResponseBuilder:
    """Builds one response of the responses API. Without streaming, only the response of the last event is sent."""

    def __init__(self, request_id: str, model: str, body: ResponsesBody, chat: PreparedChat) -> None:
        self.framing = Framing(named=True, end_mark=b"", failure=self.failure)
        self._head = _head(request_id, model, body)
        self._logprobs = body.shows_logprobs
        self._parsers = OutputParsers(chat.parser_config)
        self._usage = UsageCount(chat.request)
        self._items: list[_Item] = []
        self._open: _Item | None = None
        self._held_logprobs: list[dict[str, Any]] = []  # log-probabilities of text that is held back
        self._num_logprobs = 0
        self._num_events = 0
        self._finish: str | None = None

    def whole(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return the response to a request without stream."""
        for delta in deltas:
            self.chunks(delta)
        response: dict[str, Any] = self.last_chunks()[-1]["response"]
        return response

    def first_chunks(self) -> list[Event]:
        """Return the response without output, in both events that clients wait for."""
        return [
            self._event(f"response.{name}", response=self._response("in_progress"))
            for name in ("created", "in_progress")
        ]

    def chunks(self, delta: Delta) -> list[Event]:
        """Return the events for new output."""
        parsed = self._parsers.parse(delta)
        self._usage.add(delta, parsed.reasoning_tokens)
        self._finish = parsed.finish or self._finish
        if self._logprobs:
            self._hold_logprobs(delta, parsed)
        return [event for part in parsed.parts for event in self._add(part)]

    def last_chunks(self) -> list[Event]:
        """Return the events that end the last item and the response."""
        events = [] if self._items else self._start(ContentPart(Kind.TEXT, ""))
        status = "incomplete" if self._finish == "length" else "completed"
        events += self._close(status)
        return [*events, self._event(f"response.{status}", response=self._response(status))]

    def failure(self, error: Rejected) -> list[Event]:
        """Return the events that end a stream that fails after the status line."""
        events = [] if self._num_events else self.first_chunks()
        if self._open is not None:
            self._open.status = "incomplete"
        fields = {"code": error.code or "server_error", "message": error.message}
        return [*events, self._event("response.failed", response={**self._response("failed"), "error": fields})]

    def _add(self, part: ContentPart) -> list[Event]:
        continues = self._open is not None and self._open.kind is part.kind and part.name is None
        events = [] if continues else [*self._close("completed"), *self._start(part)]
        item = self._open
        assert item is not None
        if not part.text:
            return events
        item.text += part.text
        more: Event = {"content_index": 0} if item.kind is not Kind.CALL else {}
        if item.kind is Kind.TEXT:
            more["logprobs"] = self._release_logprobs(item)
        return [*events, self._item_event(item, f"{EVENTS[item.kind]}.delta", delta=part.text, **more)]

    def _start(self, part: ContentPart) -> list[Event]:
        item = _Item(part.kind, PREFIXES[part.kind] + secrets.token_hex(16), call_id=part.id, name=part.name)
        self._items.append(item)
        self._open = item
        index = len(self._items) - 1
        events = [self._event("response.output_item.added", output_index=index, item=item.shown(empty=True))]
        if item.kind is not Kind.CALL:
            events.append(self._item_event(item, "content_part.added", content_index=0, part=item.part()))
        return events

    def _close(self, status: str) -> list[Event]:
        """Return the events that end the open item, if any."""
        item, self._open = self._open, None
        if item is None:
            return []
        item.status = status
        if item.kind is Kind.CALL:
            fields = {"name": item.name, "arguments": item.text}
            events = [self._item_event(item, "function_call_arguments.done", **fields)]
        else:
            if item.kind is Kind.TEXT:
                self._release_logprobs(item)
            more = {"logprobs": item.logprobs} if item.kind is Kind.TEXT else {}
            events = [
                self._item_event(item, f"{EVENTS[item.kind]}.done", content_index=0, text=item.text, **more),
                self._item_event(item, "content_part.done", content_index=0, part=item.part()),
            ]
        index = len(self._items) - 1
        return [*events, self._event("response.output_item.done", output_index=index, item=item.shown())]

    def _hold_logprobs(self, delta: Delta, parsed: ParsedDelta) -> None:
        """Keep the log-probabilities of text. Reasoning tokens come first; their number may be known later."""
        self._num_logprobs += len(delta.logprobs)
        if any(kind is Kind.TEXT for kind in (parsed.kind, *(part.kind for part in parsed.parts))):
            self._held_logprobs += chat_logprobs(delta.logprobs)["content"]
            first = self._num_logprobs - len(self._held_logprobs)
            del self._held_logprobs[: max((parsed.reasoning_tokens or 0) - first, 0)]

    def _release_logprobs(self, item: _Item) -> list[dict[str, Any]]:
        """Move the held log-probabilities to the item and return them."""
        taken, self._held_logprobs = self._held_logprobs, []
        item.logprobs += taken
        return taken

    def _item_event(self, item: _Item, what: str, **more: Any) -> Event:
        return self._event(f"response.{what}", item_id=item.id, output_index=len(self._items) - 1, **more)

    def _event(self, kind: str, **more: Any) -> Event:
        event = {"type": kind, "sequence_number": self._num_events, **more}
        self._num_events += 1
        return event

    def _response(self, status: str) -> dict[str, Any]:
        ended = status in ("completed", "incomplete")
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": [item.shown() for item in self._items],
            "usage": _usage(self._usage.report()) if ended else None,
        }


def _head(request_id: str, model: str, body: ResponsesBody) -> dict[str, Any]:
    """Return the fields of a response that depend only on the request."""
    form = body.text.format if body.text else None
    parts = {} if form is None else {"name": form.name, "schema": form.schema, "strict": form.strict}
    shown_form = {
        "type": form.type if form else "text",
        **{key: part for key, part in parts.items() if part is not None},
    }
    return {
        "id": f"resp_{request_id}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "background": False,
        "error": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": shown_form},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": msgspec.to_builtins(body.tools or []),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",  # even if "auto" was requested: input that does not fit is refused
        "user": body.user,
    }


def _usage(report: dict[str, Any]) -> dict[str, Any]:
    """Return the token counts in the format of the responses API."""
    thought = report.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    usage = {
        "input_tokens": report["prompt_tokens"],
        "input_tokens_details": {**report["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": report["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": report["total_tokens"],
    }
    return usage | ({"ebbtide": report["ebbtide"]} if "ebbtide" in report else {})
