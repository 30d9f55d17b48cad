"""Log formatters and log setup of all processes: one line per record, as text or JSON, with control characters escaped.

A record about one request has ``extra={"rid": …}``, which is a separate field in JSON. Prompts are never logged.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


MAX_MESSAGE = 4_000  # characters
COLOURS = {logging.DEBUG: 2, logging.WARNING: 33, logging.ERROR: 31, logging.CRITICAL: 31}
CLEAR_LINE = "\r\x1b[2K"


class OneLine(logging.Formatter):
    """A formatter that escapes line breaks and control characters, so that no record can forge another.

    The lines of a traceback are indented. A message is cut after ``MAX_MESSAGE`` characters.

    on_terminal: True to clear the current line of the terminal first, because it may show the progress of loading, and
        to colour the level unless the environment variable NO_COLOR is set.
    """

    def __init__(self, layout: str, *, on_terminal: bool = False) -> None:
        super().__init__(layout)
        self._start = CLEAR_LINE if on_terminal else ""
        self._colours = COLOURS if on_terminal and not os.environ.get("NO_COLOR") else {}

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = self._colours.get(record.levelno)
        if colour is not None:  # added after the control characters of the record have been escaped
            text = text.replace(record.levelname, f"\x1b[{colour}m{record.levelname}\x1b[0m", 1)
        return self._start + text

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        return _visible(_cut(text))

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"    {_visible(line[:MAX_MESSAGE])}" for line in super().formatException(ei).splitlines())


class JsonLine(logging.Formatter):
    """A formatter that writes one ASCII JSON object per line: time (UTC), process, level, message, rid, traceback.

    rid and traceback are optional. Messages keep their first ``MAX_MESSAGE`` characters, tracebacks their last.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": when.isoformat(timespec="milliseconds"),
            "process": self._process,
            "level": record.levelname.lower(),
            "message": _cut(record.getMessage()),
        }
        rid = record.__dict__.get("rid")
        if rid is not None:
            line["rid"] = str(rid)
        if record.exc_info:
            line["traceback"] = _cut(self.formatException(record.exc_info), keep_end=True)
        return json.dumps(line)


def _cut(text: str, *, keep_end: bool = False) -> str:
    if len(text) <= MAX_MESSAGE:
        return text
    return "…" + text[-MAX_MESSAGE:] if keep_end else text[:MAX_MESSAGE] + "…"


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def setup_logging(process: str, level: str, log_format: str = "text") -> None:
    """Log records of at least ``level`` to stderr.

    process: name of the process in each line.
    log_format: "text" or "json".
    """
    handler = logging.StreamHandler(sys.stderr)
    text = OneLine(f"%(asctime)s {process:<11} %(levelname)-7s %(message)s", on_terminal=sys.stderr.isatty())
    handler.setFormatter(JsonLine(process) if log_format == "json" else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    for noisy in ("httpx", "httpcore", "urllib3", "filelock", "asyncio", "torch"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, LEVELS[level]))


def setup_command_log() -> None:
    """Log to stderr for a command that is not a server: only the message of each record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.getLogger("ebbtide").setLevel(logging.INFO)
