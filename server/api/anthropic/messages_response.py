"""The response of POST /v1/messages: one message, or the events that build it block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ebbtide.tokenizer_mgr.response_stream import Delta

from ...http.streaming import Framing
from ...http.strict_json import parse_arguments
from ...parsers.content_parts import ContentPart, Kind
from ...parsers.output_parser import OutputParsers
from ..chat.prepared_chat import PreparedChat
from ..usage import UsageCount
from .errors import anthropic_error

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
FRAMING = Framing(named=True, keep_alive=PING, end_mark=b"", failure=lambda error: [anthropic_error(error)])

Event = dict[str, Any]


@dataclass(slots=True)
class _Block:
    """One content block, with the content generated so far. For a tool call, ``text`` is its input as JSON."""

    kind: Kind
    id: str | None = None
    name: str | None = None
    text: str = ""

    def shown(self) -> dict[str, Any]:
        """Return the block in the format of the API."""
        if self.kind is Kind.TEXT:
            return {"type": "text", "text": self.text}
        if self.kind is Kind.REASONING:
            return {"type": "thinking", "thinking": self.text, "signature": ""}
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": _input(self.text)}

    def delta(self, text: str) -> dict[str, Any]:
        """Return the ``delta`` that appends ``text``."""
        if self.kind is Kind.TEXT:
            return {"type": "text_delta", "text": text}
        if self.kind is Kind.REASONING:
            return {"type": "thinking_delta", "thinking": text}
        return {"type": "input_json_delta", "partial_json": text}


class MessagesResponseBuilder:
    """Builds one response of Anthropic's messages API."""

    framing = FRAMING

    def __init__(self, request_id: str, model: str, chat: PreparedChat) -> None:
        self._head = {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model}
        self._parsers = OutputParsers(chat.parser_config)
        self._usage = UsageCount(chat.request)
        self._blocks: list[_Block] = []
        self._begun = False
        self._ending: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    def whole(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return the response to a non-streaming request."""
        for delta in deltas:
            self.chunks(delta)
        return {
            **self._head,
            "content": [block.shown() for block in self._blocks],
            **self._ending,
            "usage": self._usage_fields(),
        }

    def first_chunks(self) -> list[Event]:
        """Return no event: the first event contains token counts that are not known before the first delta."""
        return []

    def chunks(self, delta: Delta) -> list[Event]:
        """Return the events for new output."""
        parsed = self._parsers.parse(delta)
        self._usage.add(delta, parsed.reasoning_tokens)
        events = [] if self._begun else [self._start()]
        self._begun = True
        if parsed.finish is not None:
            self._ending = _ending(delta, parsed.finish)
        return events + [event for part in parsed.parts for event in self._add(part)]

    def last_chunks(self) -> list[Event]:
        """Return the events that end the last block and the message."""
        ending = {"type": "message_delta", "delta": self._ending, "usage": self._usage_fields()}
        return [*self._close(), ending, {"type": "message_stop"}]

    def _start(self) -> Event:
        message = {**self._head, "content": [], **self._ending, "usage": {**self._usage_fields(), "output_tokens": 0}}
        return {"type": "message_start", "message": message}

    def _add(self, part: ContentPart) -> list[Event]:
        events: list[Event] = []
        if not self._blocks or self._blocks[-1].kind is not part.kind or part.name is not None:
            events = self._close()
            self._blocks.append(_Block(part.kind, part.id, part.name))
            events.append(self._block_event("content_block_start", content_block=self._blocks[-1].shown()))
        block = self._blocks[-1]
        block.text += part.text
        if part.text:
            events.append(self._block_event("content_block_delta", delta=block.delta(part.text)))
        return events

    def _close(self) -> list[Event]:
        """Return the event that ends the open block, if any. Only the last block can be open."""
        return [self._block_event("content_block_stop")] if self._blocks else []

    def _block_event(self, kind: str, **more: Any) -> Event:
        return {"type": kind, "index": len(self._blocks) - 1, **more}

    def _usage_fields(self) -> dict[str, Any]:
        """Return the token counts in Anthropic's format, whose input_tokens exclude cached tokens."""
        report = self._usage.report()
        cached = report["prompt_tokens_details"]["cached_tokens"]
        usage: dict[str, Any] = {
            "input_tokens": report["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": report["completion_tokens"],
        }
        if "completion_tokens_details" in report:
            usage["output_tokens_details"] = {
                "thinking_tokens": report["completion_tokens_details"]["reasoning_tokens"]
            }
        return usage | ({"ebbtide": report["ebbtide"]} if "ebbtide" in report else {})


def _ending(delta: Delta, finish: str) -> dict[str, Any]:
    """Return the fields that describe why the output ended."""
    if finish == "stop" and isinstance(delta.matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": delta.matched}
    return {"stop_reason": STOP_REASONS[finish], "stop_sequence": None}


def _input(text: str) -> dict[str, Any]:
    """Return the input of a tool call; {} if it was truncated, in which case the stop reason is max_tokens."""
    return parse_arguments(text) or {}
