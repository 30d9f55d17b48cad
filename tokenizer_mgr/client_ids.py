"""Finds open requests by the ids that clients know: ids chosen by the client, which need not be unique, and response
ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from ebbtide.errors import Rejected

# Prefixes that response bodies put before the id of a request.
RESPONSE_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_", "embd-", "rerank-", "score-")


class OpenRequest(Protocol):
    """A request that can be aborted."""

    @property
    def owner(self) -> str: ...

    @property
    def rids(self) -> Sequence[str]: ...

    @property
    def has_outcome(self) -> bool: ...

    def fail(self, error: Rejected) -> None: ...


class ClientIds:
    """Maps ids to open requests. Removing a request also removes its ids."""

    def __init__(self) -> None:
        self._named: dict[str, list[OpenRequest]] = {}
        self._open: dict[int, tuple[OpenRequest, tuple[str, ...]]] = {}
        self._owners: Counter[str] = Counter()

    def add(self, request: OpenRequest, ids: Iterable[str]) -> None:
        """Add ``request`` under all of ``ids``."""
        known = tuple(dict.fromkeys(ids))
        self._open[id(request)] = request, known
        self._owners[request.owner] += 1
        for name in known:
            self._named.setdefault(name, []).append(request)

    def remove(self, request: OpenRequest) -> None:
        """Remove ``request``. Does nothing if the request was not added."""
        _, names = self._open.pop(id(request), (None, None))
        if names is None:
            return
        self._owners[request.owner] -= 1
        if not self._owners[request.owner]:
            del self._owners[request.owner]
        for name in names:
            others = [other for other in self._named.get(name, ()) if other is not request]
            if others:
                self._named[name] = others
            else:
                self._named.pop(name, None)

    def count(self, owner: str) -> int:
        """Return the number of open requests of ``owner``."""
        return self._owners[owner]

    def every(self) -> list[OpenRequest]:
        """Return all open requests, in the order of their arrival."""
        return [request for request, _ in self._open.values()]

    def find(self, name: str) -> list[OpenRequest]:
        """Return the open requests with the id ``name``, which may have the prefix of a response id."""
        bare = next((name.removeprefix(prefix) for prefix in RESPONSE_PREFIXES if name.startswith(prefix)), name)
        found = [*self._named.get(name, ()), *(self._named.get(bare, ()) if bare != name else ())]
        return list({id(request): request for request in found}.values())
