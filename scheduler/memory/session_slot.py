"""The K/V that a streaming session keeps between its turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .cached_request import CachedRequest
from .ledger import Ledger
from .node import Node


@dataclass(slots=True, eq=False)
class SessionSlot:
    """The K/V of a session's committed tokens, in whole pages. A ``Tail`` of the turn's prefix.

    The pages before index ``first`` are shared pages of the inner cache. Every access to the slot also accesses those
    shared pages, so they are never evicted before the slot. Other pools keep their pages of the slot themselves, see
    ``TailPart``.
    """

    session: str  # key of the session, which is never reused
    first: int = 0  # page index of the first of ``pages``
    pages: list[int] = field(default_factory=list)
    pinned_by: str = ""  # request id of the running turn; "" while the slot is evictable
    parent: Node | None = None  # while pinned: the node of the inner cache that ends before ``first``, if it has nodes
    last_access: int = 0  # the value of the cache's LRU clock at the last access
    closed: bool = False  # True if the session is closed; the slot is then freed when its running turn ends
    is_tree_node: ClassVar[bool] = False

    @property
    def tag(self) -> str:
        """The slot's name in messages."""
        return f"the slot of session {self.session}"

    @property
    def is_locked(self) -> bool:
        """True while a turn that uses the slot is running."""
        return bool(self.pinned_by)

    @property
    def locks(self) -> int:
        """See ``Tail``."""
        return int(self.is_locked)

    def restore_to_req(self, req: CachedRequest) -> None:
        """Share the slot's pages with ``req``, which already has the pages before ``first``.

        The slot keeps its pages, so a turn that was not admitted or was retracted can attach again with the same
        result.
        """
        self.pinned_by = req.rid
        req.pages += self.pages
        req.num_shared = len(req.pages)

    def save_from_req(self, req: CachedRequest, num_pages: int, ledger: Ledger) -> int:
        """Move the request's private pages before index ``num_pages`` to the slot. Return their number."""
        if self.pinned_by != req.rid:  # the turn did not use the slot, so all earlier pages belong to the inner cache
            assert req.node is None or isinstance(req.node, Node)
            self.first, self.pinned_by, self.parent = req.num_shared, req.rid, req.node
        new = req.pages[req.num_shared : num_pages]
        ledger.move(tuple(new), req, self)
        self.pages += new
        req.num_shared += len(new)
        return len(new)

    def unpin(self) -> None:
        """End the use by a running turn."""
        self.pinned_by, self.parent = "", None
