"""Admission conditions of waiting requests. Each is a ``Gate``, which decides when a request is ready to be admitted.

One condition is that the request's grammar is compiled. For another condition, add a class that implements ``Gate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ebbtide.messages import AbortReq

from .request import Request


class Gate(Protocol):
    """A condition that must be met before a request can be admitted."""

    def add(self, req: Request) -> None:
        """Add a new request. It is not admitted before ``ready`` returns True for it."""

    def poll(self) -> list[tuple[Request, AbortReq]]:
        """Update the state. Return the requests that can never become ready, each with its abort message."""

    def ready(self, req: Request) -> bool:
        """Return True if the condition is met for ``req``."""

    def forget(self, req: Request) -> None:
        """Remove a request that has ended."""

    def why(self, req: Request) -> str:
        """Return the reason why ``req`` is not ready; "" if it is ready."""

    @property
    def num_waiting(self) -> int:
        """Number of requests that are not ready."""


class Gates:
    """Combines several admission conditions into one: a request is ready if all of them are met."""

    def __init__(self, gates: Sequence[Gate]) -> None:
        self._gates = gates

    def add(self, req: Request) -> None:
        """See ``Gate``."""
        for gate in self._gates:
            gate.add(req)

    def poll(self) -> list[tuple[Request, AbortReq]]:
        """See ``Gate``."""
        return [failure for gate in self._gates for failure in gate.poll()]

    def ready(self, req: Request) -> bool:
        """See ``Gate``."""
        return all(gate.ready(req) for gate in self._gates)

    def why(self, req: Request) -> str:
        """See ``Gate``. Returns the reason of the first condition that is not met."""
        return next((reason for gate in self._gates if (reason := gate.why(req))), "")

    def ended(self, req: Request, *, finished: bool) -> None:
        """See ``EndListener``."""
        for gate in self._gates:
            gate.forget(req)

    @property
    def num_waiting(self) -> int:
        """See ``Gate``."""
        return sum(gate.num_waiting for gate in self._gates)
