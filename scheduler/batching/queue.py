"""The waiting queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from ..request import Request
from .arrival_order import ArrivalOrder


class PriorityClass(Protocol):
    """The waiting requests of one priority, in the order in which they should start."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def __contains__(self, req: Request) -> bool: ...

    def candidates(self) -> Iterator[Request]:
        """Yield the requests that may start now, in order."""

    @property
    def in_use(self) -> bool:
        """False if the object can be replaced by a new one."""

    def num_before(self, account: str) -> int:
        """Return the number of waiting requests ahead of a new request of this account."""

    def put(self, req: Request, *, front: bool) -> None:
        """Add a request. front: True to insert it before all new requests, False to append it."""

    def remove(self, req: Request, *, started: bool = False) -> None:
        """Remove a request, because it has started or because it has ended. Raises KeyError if it is not waiting."""

    def ended(self, req: Request) -> None:
        """Record the end of a request that may have started."""


class WaitingQueue:
    """Waiting requests by priority class, the highest priority first.

    In each class, requests that have run before come first, then new requests, both in order of arrival unless
    ``order`` says otherwise. Finding and removing a request takes constant time.
    """

    def __init__(self, *, by_priority: bool = False, order: Callable[[], PriorityClass] = ArrivalOrder) -> None:
        """by_priority: True for one class per priority, False for one class of all requests."""
        self._by_priority = by_priority
        self._order = order
        self._classes: dict[int, PriorityClass] = {}
        self._priorities: list[int] = []
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Request]:
        for priority in self._priorities:
            yield from self._classes[priority]

    def __contains__(self, req: Request) -> bool:
        priority = self._priority(req)
        return priority in self._classes and req in self._classes[priority]

    def candidates(self) -> Iterator[Request]:
        """Yield the requests that may start now, in order."""
        for priority in self._priorities:
            yield from self._classes[priority].candidates()

    def num_before(self, priority: int, account: str = "") -> int:
        """Return the number of waiting requests ahead of a new request of this priority and account."""
        if not self._by_priority:
            priority = 0
        higher = sum(len(group) for rank, group in self._classes.items() if rank > priority)
        return higher + (self._classes[priority].num_before(account) if priority in self._classes else 0)

    def put(self, req: Request, *, front: bool) -> None:
        """Add a request to its class.

        front: True to insert it before all new requests, in order of arrival; False to append it.
        """
        self._class(self._priority(req)).put(req, front=front)
        self._len += 1

    def remove(self, req: Request, *, started: bool = False) -> None:
        """Remove one request, because it has started or because it has ended. Raises KeyError if it is not waiting."""
        priority = self._priority(req)
        self._classes[priority].remove(req, started=started)
        self._len -= 1
        self._drop_if_unused(priority)

    def ended(self, req: Request, *, finished: bool) -> None:
        """See ``EndListener``."""
        priority = self._priority(req)
        if priority in self._classes:
            self._classes[priority].ended(req)
            self._drop_if_unused(priority)

    def _drop_if_unused(self, priority: int) -> None:
        if not self._classes[priority].in_use:
            del self._classes[priority]
            self._priorities.remove(priority)

    def _priority(self, req: Request) -> int:
        return req.priority if self._by_priority else 0

    def _class(self, priority: int) -> PriorityClass:
        if priority not in self._classes:
            self._classes[priority] = self._order()
            self._priorities = sorted(self._classes, reverse=True)
        return self._classes[priority]
