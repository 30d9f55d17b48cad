"""One HTTP request with its prompts tokenized and its parameters validated, and what its sender may have of the engine.

Knows no API.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from ebbtide.messages import SamplingParams, SessionTurn, TextParams


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """All generations of one HTTP request: ``n`` choices of each prompt.

    Attributes:
        sampling: one entry per prompt
        namespace: part of the prefix cache that the client asked for
        grammar: what every choice must match (``GenerateReq``)
    """

    prompts: list[list[int]]
    sampling: list[SamplingParams]
    text: TextParams
    n: int = 1
    priority: int = 0
    namespace: str = ""
    session: SessionTurn | None = None
    grammar: str = ""

    @property
    def num_choices(self) -> int:
        """Choice index = prompt index × n + sample."""
        return len(self.prompts) * self.n


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of one HTTP request, and the limits that hold for it.

    Attributes:
        ids: ids by which the client knows the request
        owner: who may abort it by such an id, and whose sessions it may use
        max_priority: None is no limit
        is_isolated: the owner's part of the prefix cache is its own
        queue_timeout_s: seconds from its arrival until it must run
        timeout_s: seconds from its arrival until it must have ended
    """

    ids: tuple[str, ...] = ()
    owner: str = ""
    max_priority: int | None = None
    is_isolated: bool = False
    queue_timeout_s: float | None = None
    timeout_s: float | None = None

    def priority(self, wanted: int) -> int:
        """The priority that a request gets."""
        return wanted if self.max_priority is None else min(wanted, self.max_priority)

    def namespace(self, wanted: str) -> str:
        """The part of the prefix cache that a request uses; the tag separates keys from salts and other names."""
        return f"key:{self.owner}|{wanted}" if self.is_isolated and self.owner else wanted

    def session(self, wanted: SessionTurn | None) -> SessionTurn | None:
        """The turn, of a session of the sender's own."""
        return None if wanted is None else structs.replace(wanted, owner=self.owner)
