"""The response of POST /v1/responses: one object, or the events from which the client builds it."""

from __future__ import annotations

import time
from typing import Any

from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.response_stream import Delta

from ...http.streaming import Framing
from ...parsers.content_parts import ContentPart, Kind
from ...parsers.output_parser import OutputParsers, ParsedDelta
from ..chat.prepared_chat import PreparedChat
from ..logprobs import chat_logprobs
from ..usage import UsageCount
from .call_forms import FUNCTION
from .output_item import OutputItem
from .responses_request import ResponsesBody
from .responses_tools import ClientCall, OfferedTools

Event = dict[str, Any]


class ResponsesResponseBuilder:
    """Builds one response of the responses API.

    For a non-streaming request, only the response object of the last event is sent.
    """

    def __init__(
        self, head: dict[str, Any], chat: PreparedChat, offered: OfferedTools, *, shows_logprobs: bool
    ) -> None:
        self.framing = Framing(named=True, end_mark=b"", failure=self.failure)
        self._head = head
        self._offered = offered
        self._logprobs = shows_logprobs
        self._parsers = OutputParsers(chat.parser_config)
        self._usage = UsageCount(chat.request)
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._held_logprobs: list[dict[str, Any]] = []  # log-probabilities of text that is still held back
        self._num_logprobs = 0
        self._num_events = 0
        self._finish: str | None = None

    def whole(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return the response to a non-streaming request."""
        for delta in deltas:
            self.chunks(delta)
        response: dict[str, Any] = self.last_chunks()[-1]["response"]
        return response

    def first_chunks(self) -> list[Event]:
        """Return the two events with which a stream starts; their response has no output yet."""
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
        """Return the events that end a stream whose request fails after the status line was sent."""
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
        if not item.streams_deltas:
            return events
        more: Event = {"content_index": 0} if item.kind is not Kind.CALL else {}
        if item.kind is Kind.TEXT:
            more["logprobs"] = self._release_logprobs(item)
        return [*events, self._item_event(item, f"{item.event}.delta", delta=part.text, **more)]

    def _start(self, part: ContentPart) -> list[Event]:
        call = self._offered.call_of(part.name or "") if part.kind is Kind.CALL else None
        item = OutputItem(part.kind, call, call_id=part.id)
        self._items.append(item)
        self._open = item
        if item.event is None:
            return []
        events = [self._added(item.shown(empty=True))]
        if item.kind is not Kind.CALL:
            events.append(self._item_event(item, "content_part.added", content_index=0, part=item.part()))
        return events

    def _close(self, status: str) -> list[Event]:
        """Return the events that end the open item, if any."""
        item, self._open = self._open, None
        if item is None:
            return []
        events = self._ending(item) if item.call is None else self._call_ending(item, item.call)
        item.status = status
        index = len(self._items) - 1
        return [*events, self._event("response.output_item.done", output_index=index, item=item.shown())]

    def _ending(self, item: OutputItem) -> list[Event]:
        if item.kind is Kind.TEXT:
            self._release_logprobs(item)
        more = {"logprobs": item.logprobs} if item.kind is Kind.TEXT else {}
        return [
            self._item_event(item, f"{item.event}.done", content_index=0, text=item.text, **more),
            self._item_event(item, "content_part.done", content_index=0, part=item.part()),
        ]

    def _call_ending(self, item: OutputItem, call: ClientCall) -> list[Event]:
        if item.event is None:
            return [self._added(item.shown())]
        content = call.form.content_of(item.text)
        deltas = (
            [] if item.streams_deltas or not content else [self._item_event(item, f"{item.event}.delta", delta=content)]
        )
        named = {"name": call.name} if call.form is FUNCTION else {}
        return [*deltas, self._item_event(item, f"{item.event}.done", **named, **{call.form.content: content})]

    def _added(self, shown: dict[str, Any]) -> Event:
        return self._event("response.output_item.added", output_index=len(self._items) - 1, item=shown)

    def _hold_logprobs(self, delta: Delta, parsed: ParsedDelta) -> None:
        """Keep the log-probabilities of text tokens.

        The log-probabilities of reasoning tokens, which come first, are removed once the number of these tokens is
        known.
        """
        self._num_logprobs += len(delta.logprobs)
        if any(kind is Kind.TEXT for kind in (parsed.kind, *(part.kind for part in parsed.parts))):
            self._held_logprobs += chat_logprobs(delta.logprobs)["content"]
            first = self._num_logprobs - len(self._held_logprobs)
            del self._held_logprobs[: max((parsed.reasoning_tokens or 0) - first, 0)]

    def _release_logprobs(self, item: OutputItem) -> list[dict[str, Any]]:
        """Move the held log-probabilities to the item and return them."""
        taken, self._held_logprobs = self._held_logprobs, []
        item.logprobs += taken
        return taken

    def _item_event(self, item: OutputItem, what: str, **more: Any) -> Event:
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


def response_head(request_id: str, model: str, body: ResponsesBody) -> dict[str, Any]:
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
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",  # even if the client requested "auto", because input that does not fit is refused
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
