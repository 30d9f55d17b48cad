"""The pages of a sliding window that one node of the prefix tree has."""

from __future__ import annotations

from dataclasses import dataclass, field

from ebbtide.errors import InvariantViolation

from ..node import PathElement


@dataclass(slots=True, eq=False)
class WindowSpan:
    """The pages of a sliding-window pool for the last ``len(pages)`` pages of tokens of a tree node or tail.

    Attributes:
        users: n → number of running requests that read exactly the last n pages.
        num_locked: the maximum of ``users``.
        num_tail: number of last pages that the most recent user of the node would need to continue.
        last_access: value of the tree's access clock when a request stopped using pages of the span.
    """

    node: PathElement
    pages: list[int]
    users: dict[int, int] = field(default_factory=dict)
    num_locked: int = 0
    num_tail: int = 0
    last_access: int = 0

    @property
    def is_locked(self) -> bool:
        """True if a running request reads pages of the span."""
        return self.num_locked > 0

    @property
    def is_tree_node(self) -> bool:
        """False for the span of a tail."""
        return self.node.is_tree_node

    @property
    def num_deep(self) -> int:
        """Number of first pages that no running request reads and the most recent user would not need to continue."""
        return len(self.pages) - max(self.num_locked, self.num_tail)

    @property
    def tag(self) -> str:
        """The span's name in messages."""
        return f"a window of {len(self.pages)} pages on {self.node.tag}"

    def relock(self, before: int, after: int) -> None:
        """Change the number of last pages that one request reads from ``before`` to ``after``.

        Raises InvariantViolation if ``before`` is not 0 and no request reads exactly that many pages.
        """
        if before:
            num_users = self.users.pop(before, 0)
            if not num_users:
                raise InvariantViolation(
                    f"no request reads the last {before} pages of {self.tag}, so none unlocks them"
                )
            if num_users > 1:
                self.users[before] = num_users - 1
        if after:
            self.users[after] = self.users.get(after, 0) + 1
        self.num_locked = max(self.users, default=0)

    def move_users(self, top: WindowSpan) -> None:
        """Divide locks and ``num_tail`` after the first pages of this span were moved to the new span ``top``."""
        keep = len(self.pages)
        top.num_tail, self.num_tail = max(self.num_tail - keep, 0), min(self.num_tail, keep)
        for number, count in list(self.users.items()):
            if number > keep:
                del self.users[number]
                top.users[number - keep] = count
                self.users[keep] = self.users.get(keep, 0) + count
        for half in (top, self):
            half.num_locked = max(half.users, default=0)
