"""Log records of every process: one line each, control characters escaped, never a prompt."""

from __future__ import annotations

import logging
import sys

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class OneLine(logging.Formatter):
    """A formatter whose output cannot be forged by what a record contains: line breaks and escapes become visible."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.exc_info or record.exc_text:
            return text  # a traceback is ours, and unreadable on one line
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
