"""Readiness of waiting requests as a list of gates. Grammar compilation is one; a new kind is a new class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ebbtide.messages import AbortReq

from .request import Request


class Gate(Protocol):
    """Something that a request may have to wait for before it is admitted."""

    def add(self, req: Request) -> None:
        """Add a new request, which is not admitted until ``ready`` returns True."""

    def poll(self) -> list[tuple[Request, AbortReq]]:
        """Update readiness; return the requests that can never become ready, with the abort for each."""

    def ready(self, req: Request) -> bool:
        """True if this gate lets ``req`` start."""

    def forget(self, req: Request) -> None:
        """Remove a request that has ended."""

    def why(self, req: Request) -> str:
        """The condition that ``req`` waits for; "" if it is ready."""

    @property
    def num_waiting(self) -> int:
        """Requests that are not ready."""


class Gates:
    """All gates as one."""

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
        """See ``Gate``: the first reason."""
        return next((reason for gate in self._gates if (reason := gate.why(req))), "")

    def ended(self, req: Request, *, finished: bool) -> None:
        """See ``EndListener``."""
        for gate in self._gates:
            gate.forget(req)

    @property
    def num_waiting(self) -> int:
        """See ``Gate``."""
        return sum(gate.num_waiting for gate in self._gates)
