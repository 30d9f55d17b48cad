"""Log records of every process: one line each, control characters escaped, never a prompt."""

from __future__ import annotations

import logging
import sys
from typing import Any

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


MAX_MESSAGE = 4_000  # characters


class OneLine(logging.Formatter):
    """A formatter whose output cannot be forged by what a record contains: line breaks and escapes become visible.

    A traceback keeps its lines, each of them indented; a message is cut after ``MAX_MESSAGE`` characters.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        return _visible(text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "…")

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"    {_visible(line[:MAX_MESSAGE])}" for line in super().formatException(ei).splitlines())


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def setup_logging(process: str, level: str) -> None:
    """Send everything from ``level`` up to stderr; ``process`` is the word in each line that says who speaks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(f"%(asctime)s {process:<11} %(levelname)-7s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    for noisy in ("httpx", "httpcore", "urllib3", "filelock", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, LEVELS[level]))
