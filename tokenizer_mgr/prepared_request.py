"""A validated and tokenized HTTP request, and the limits of its sender. The module does not depend on the API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from ebbtide.messages import GenerateReq, SamplingParams, SessionTurn, TextParams, ToEngine


class Prepared(Protocol):
    """An HTTP request that can be submitted."""

    @property
    def num_choices(self) -> int:
        """Number of results, each with an id of its own."""

    def messages(self, rids: Sequence[str], sender: Sender, spent_s: float) -> Iterator[ToEngine]:
        """Yield the messages to the engine.

        rids: one id per result.
        spent_s: seconds since the request's arrival.
        """


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """All generations of one HTTP request: ``n`` choices of each prompt.

    Attributes:
        sampling: the sampling parameters, one entry per prompt
        namespace: the prefix cache namespace that the client selected
        grammar: the grammar that every choice must match, as in ``GenerateReq``
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
        """Number of choices. The index of a choice is prompt index × n + sample index."""
        return len(self.prompts) * self.n

    def messages(self, rids: Sequence[str], sender: Sender, spent_s: float) -> Iterator[ToEngine]:
        """See ``Prepared``. Yields one message per prompt."""
        for prompt_index, prompt in enumerate(self.prompts):
            yield GenerateReq(
                rids=tuple(rids[prompt_index * self.n : (prompt_index + 1) * self.n]),
                prompt=prompt,
                sampling=self.sampling[prompt_index],
                text=self.text,
                priority=sender.priority(self.priority),
                account=sender.owner,
                namespace=sender.namespace(self.namespace),
                session=sender.session(self.session),
                grammar=self.grammar,
                queue_timeout_s=_remaining(sender.queue_timeout_s, spent_s),
                timeout_s=_remaining(sender.timeout_s, spent_s),
                num_before=prompt_index * self.n,
            )


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of one HTTP request, and the limits that hold for it.

    Attributes:
        ids: ids by which the client knows the request
        owner: the API key that may abort the request by these ids and whose sessions the request may use; "" if the
            server has no keys
        max_priority: highest priority that a request may have; None for no limit
        is_isolated: True if the owner shares no cached prefixes with other owners
        queue_timeout_s: seconds from the arrival until the request must have been started; None for no limit
        timeout_s: seconds from the arrival until the request must have ended; None for no limit
    """

    ids: tuple[str, ...] = ()
    owner: str = ""
    max_priority: int | None = None
    is_isolated: bool = False
    queue_timeout_s: float | None = None
    timeout_s: float | None = None

    def priority(self, wanted: int) -> int:
        """Return the requested priority, limited to the sender's maximum."""
        return wanted if self.max_priority is None else min(wanted, self.max_priority)

    def namespace(self, wanted: str) -> str:
        """Return the prefix cache namespace that a request uses.

        The prefix "key:" separates the namespaces of API keys from those of cache salts.
        """
        return f"key:{self.owner}|{wanted}" if self.is_isolated and self.owner else wanted

    def session(self, wanted: SessionTurn | None) -> SessionTurn | None:
        """Return ``wanted`` with the sender as the owner of the session."""
        return None if wanted is None else structs.replace(wanted, owner=self.owner)


def _remaining(limit_s: float | None, spent_s: float) -> float | None:
    return None if limit_s is None else max(limit_s - spent_s, 0.0)
