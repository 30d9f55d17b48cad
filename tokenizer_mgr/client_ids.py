"""Open requests by the names that their clients know: their own ids, which may repeat, and those of the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from ebbtide.errors import Rejected

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")  # in front of a request's id in the bodies of answers


class OpenRequest(Protocol):
    """What there is to end, wherever it is."""

    @property
    def owner(self) -> str: ...

    @property
    def rids(self) -> Sequence[str]: ...

    @property
    def has_outcome(self) -> bool: ...

    def fail(self, error: Rejected) -> None: ...


class ClientIds:
    """Which open requests are meant by an id. A request costs nothing here once it is removed."""

    def __init__(self) -> None:
        self._named: dict[str, list[OpenRequest]] = {}
        self._open: dict[int, tuple[OpenRequest, tuple[str, ...]]] = {}
        self._owners: Counter[str] = Counter()

    def add(self, request: OpenRequest, ids: Iterable[str]) -> None:
        """``request`` is known under all of ``ids`` until it is removed."""
        known = tuple(dict.fromkeys(ids))
        self._open[id(request)] = request, known
        self._owners[request.owner] += 1
        for name in known:
            self._named.setdefault(name, []).append(request)

    def remove(self, request: OpenRequest) -> None:
        """Forget ``request``; nothing happens when it is not here."""
        _, names = self._open.pop(id(request), (None, None))
        if names is None:
            return
        self._owners[request.owner] -= 1
        if not self._owners[request.owner]:
            del self._owners[request.owner]
        for name in names:
            others = [other for other in self._named[name] if other is not request]
            if others:
                self._named[name] = others
            else:
                del self._named[name]

    def count(self, owner: str) -> int:
        """How many requests of an owner's are open."""
        return self._owners[owner]

    def every(self) -> list[OpenRequest]:
        """All open requests, in the order in which they came."""
        return [request for request, _ in self._open.values()]

    def find(self, name: str) -> list[OpenRequest]:
        """Every open request that is known as ``name``, also with the prefix that an answer puts in front of it."""
        bare = next((name.removeprefix(prefix) for prefix in ANSWER_PREFIXES if name.startswith(prefix)), name)
        found = [*self._named.get(name, ()), *(self._named.get(bare, ()) if bare != name else ())]
        return list({id(request): request for request in found}.values())
