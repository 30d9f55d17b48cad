"""Logs names that clients sent and that the server ignores, such as names of unsupported fields.

The number and the size of the log lines are bounded, because clients choose the names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)
MAX_NAMES = 100  # after this number of different names, nothing more is logged
MAX_NAMED = 5  # maximum number of names in one line; the others are counted
MAX_CHARS = 100  # maximum number of characters of a name in the log


class NameLog:
    """Logs each name once, in at most one line per call, until ``MAX_NAMES`` names are known."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._known: set[str] = set()

    def report(self, names: Iterable[str]) -> None:
        """Log the names that are new."""
        if len(self._known) >= MAX_NAMES:
            return
        new = [name for name in dict.fromkeys(name[:MAX_CHARS] for name in names) if name not in self._known]
        if not new:
            return
        self._known.update(new[: MAX_NAMES - len(self._known)])
        more = f" and {len(new) - MAX_NAMED} more" if len(new) > MAX_NAMED else ""
        log.info("%s: %s%s", self._text, ", ".join(map(repr, new[:MAX_NAMED])), more)
        if len(self._known) >= MAX_NAMES:
            log.info(
                "%s: further names will not be logged, because the limit of %d names is reached", self._text, MAX_NAMES
            )
