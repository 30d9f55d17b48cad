"""The waiting queue."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ..request import Request


class WaitingQueue:
    """Waiting requests by priority class, the highest priority first.

    In each class, requests that have run before come first, then new requests, both in order of arrival. Finding and
    removing a request takes constant time.
    """

    def __init__(self, *, by_priority: bool = False) -> None:
        """by_priority: True for one class per priority, False for one class of all requests."""
        self._by_priority = by_priority
        self._classes: dict[int, _Class] = {}
        self._order: list[int] = []
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Request]:
        for priority in self._order:
            yield from self._classes[priority]

    def __contains__(self, req: Request) -> bool:
        return any(req.rid in group for group in self._classes.values())

    def num_before(self, priority: int) -> int:
        """Return the number of waiting requests that a new request of this priority is behind."""
        if not self._by_priority:
            return self._len
        return sum(len(group) for rank, group in self._classes.items() if rank >= priority)

    def put(self, req: Request, *, front: bool) -> None:
        """Add a request to its class.

        front: True to insert it before all new requests, in order of arrival; False to append it.
        """
        self._class(self._priority(req)).put(req, front=front)
        self._len += 1

    def remove(self, req: Request) -> None:
        """Remove one request. Raises KeyError if it is not waiting."""
        priority = self._priority(req)
        group = self._classes[priority]
        group.remove(req)
        self._len -= 1
        if not group:
            del self._classes[priority]
            self._order.remove(priority)

    def _priority(self, req: Request) -> int:
        return req.priority if self._by_priority else 0

    def _class(self, priority: int) -> _Class:
        if priority not in self._classes:
            self._classes[priority] = _Class()
            self._order = sorted(self._classes, reverse=True)
        return self._classes[priority]


class _Class:
    """One priority class."""

    def __init__(self) -> None:
        self._front: dict[str, Request] = {}
        # An OrderedDict, because finding the first entry of a plain dict skips over every removed entry.
        self._new: OrderedDict[str, Request] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._front or self._new)

    def __len__(self) -> int:
        return len(self._front) + len(self._new)

    def __contains__(self, rid: str) -> bool:
        return rid in self._front or rid in self._new

    def __iter__(self) -> Iterator[Request]:
        yield from self._front.values()
        yield from self._new.values()

    def put(self, req: Request, *, front: bool) -> None:
        if not front:
            self._new[req.rid] = req
            return
        self._front[req.rid] = req
        if len(self._front) > 1:
            ordered = sorted(self._front.values(), key=lambda other: other.arrival)
            self._front = {other.rid: other for other in ordered}

    def remove(self, req: Request) -> None:
        if self._front.pop(req.rid, None) is None:
            del self._new[req.rid]
