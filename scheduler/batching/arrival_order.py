"""Waiting requests in order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ..request import Request


class ArrivalOrder:
    """Requests that are to run first, then the others, both in order of arrival.

    Finding and removing a request takes constant time.
    """

    def __init__(self) -> None:
        self._front: dict[str, Request] = {}
        # An OrderedDict, because finding the first entry of a plain dict skips over every removed entry.
        self._back: OrderedDict[str, Request] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._front or self._back)

    def __len__(self) -> int:
        return len(self._front) + len(self._back)

    def __contains__(self, req: Request) -> bool:
        return req.rid in self._front or req.rid in self._back

    def __iter__(self) -> Iterator[Request]:
        yield from self._front.values()
        yield from self._back.values()

    def candidates(self) -> Iterator[Request]:
        """Yield the requests that may start now: all of them, in order."""
        return iter(self)

    @property
    def in_use(self) -> bool:
        """True if a request is waiting."""
        return bool(self)

    def num_before(self, account: str) -> int:
        """Return the number of waiting requests ahead of a new request. The account has no effect."""
        return len(self)

    def put(self, req: Request, *, front: bool) -> None:
        """Add a request. front: True to insert it before all others, in order of arrival; False to append it."""
        if not front:
            self._back[req.rid] = req
            return
        self._front[req.rid] = req
        if len(self._front) > 1:
            ordered = sorted(self._front.values(), key=lambda other: other.arrival)
            self._front = {other.rid: other for other in ordered}

    def remove(self, req: Request, *, started: bool = False) -> None:
        """Remove a request. Raises KeyError if it is not waiting."""
        if self._front.pop(req.rid, None) is None:
            del self._back[req.rid]

    def ended(self, req: Request) -> None:
        """Do nothing: the order does not depend on requests that have ended."""
