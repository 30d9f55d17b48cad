"""One item of a response of the responses API: a message, reasoning or a call."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from ...parsers.content_parts import Kind
from .call_forms import CUSTOM
from .responses_tools import ClientCall

PREFIXES = {Kind.TEXT: "msg_", Kind.REASONING: "rs_"}
EVENTS = {Kind.TEXT: "output_text", Kind.REASONING: "reasoning_text"}


@dataclass(slots=True)
class OutputItem:
    """An item with the content received so far.

    Attributes:
        call: the tool that is called, as the client knows it; None if the item is not a call.
        text: the text, the reasoning, or the arguments of the call as the model generated them.
    """

    kind: Kind
    call: ClientCall | None = None
    call_id: str | None = None
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    status: str = "in_progress"
    id: str = ""

    def __post_init__(self) -> None:
        prefix = PREFIXES[self.kind] if self.call is None else self.call.form.id_prefix
        self.id = prefix + secrets.token_hex(16)

    @property
    def event(self) -> str | None:
        """The name of the events that stream the content; None if the item is sent only when it is complete."""
        return EVENTS[self.kind] if self.call is None else self.call.form.event

    @property
    def streams_deltas(self) -> bool:
        """True if the content is sent while it is generated.

        It is False for a custom tool, whose input is known only when the call is complete.
        """
        return self.event is not None and (self.call is None or self.call.form is not CUSTOM)

    def shown(self, *, empty: bool = False) -> dict[str, Any]:
        """Return the item in the format of the API.

        empty: True to leave out the content, as in the first event of the item.
        """
        head = {"id": self.id, "status": self.status}
        parts = [] if empty else [self.part()]
        if self.call is not None:
            return {**head, **self.call.item(self.call_id, "" if empty else self.text)}
        if self.kind is Kind.TEXT:
            return {**head, "type": "message", "role": "assistant", "content": parts}
        return {**head, "type": "reasoning", "summary": [], "content": parts}

    def part(self) -> dict[str, Any]:
        """Return the content part of a message or a reasoning item. Such an item has exactly one part."""
        if self.kind is Kind.REASONING:
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.logprobs)}
