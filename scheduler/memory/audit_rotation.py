"""Owners of pages in the order in which audits visit them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from .ledger import PageOwner


class ListedOwner(PageOwner, Protocol):
    """An owner that lists its pages. One without pages no longer exists."""

    pages: list[int]


T = TypeVar("T", bound=ListedOwner)


class AuditRotation(Generic[T]):
    """All owners of a pool, of which each audit visits a share. Owners without pages are removed lazily."""

    def __init__(self) -> None:
        self._owners: deque[T] = deque()

    def __len__(self) -> int:
        """The number of owners, including some that no longer exist."""
        return len(self._owners)

    def add(self, owner: T) -> None:
        """Add an owner, which the next full round visits last."""
        self._owners.append(owner)

    def reset(self, owners: Iterable[T]) -> None:
        """Replace all owners."""
        self._owners = deque(owners)

    def next_share(self, share: float) -> list[tuple[PageOwner, Sequence[int]]]:
        """Return the next owners with their pages. share: the fraction of all owners to visit."""
        seen: list[tuple[PageOwner, Sequence[int]]] = []
        for _ in range(math.ceil(len(self._owners) * share)):
            owner = self._owners.popleft()
            if owner.pages:
                self._owners.append(owner)
                seen.append((owner, owner.pages))
        return seen
