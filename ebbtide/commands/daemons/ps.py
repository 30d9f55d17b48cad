"""``ebbtide ps``: lists this user's running servers."""

from __future__ import annotations

import argparse
import re
import time

from ebbtide.runtime.daemon_record import DaemonRecord, living_records

from ..table import duration_text, print_table

HEAD = ("PID", "MODEL", "ADDRESS", "UP", "RUNNING", "WAITING", "POOL")
GAUGES = ("num_running_reqs", "num_queue_reqs", "token_usage")
TIMEOUT_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``ebbtide ps`` has no flags."""


def run(arguments: argparse.Namespace) -> int:
    """Print one line per running server. Returns 0."""
    records = living_records()
    if records:
        print_table(HEAD, [_row(record) for record in records])
    else:
        print("No server is running. `ebbtide serve` starts one.")
    return 0


def _row(record: DaemonRecord) -> tuple[str, ...]:
    up = duration_text(time.time() - record.started)
    return (str(record.pid), record.names[0], record.url, up, *_load(record.url))


def _load(url: str) -> tuple[str, str, str]:
    """Return the numbers of running and waiting requests and the pool usage, as text; "-" if there is no answer.

    They are read from /metrics, which needs no API key.
    """
    import ssl
    import urllib.request

    unverified = ssl.create_default_context()  # the certificate names the public host, not the local address
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S, context=unverified) as answer:
            page = answer.read().decode()
    except (OSError, ValueError):
        return ("-", "-", "-")
    running, waiting, use = (_gauge(page, name) for name in GAUGES)
    return (f"{running:.0f}", f"{waiting:.0f}", f"{use:.0%}")


def _gauge(page: str, name: str) -> float:
    match = re.search(rf"^ebbtide:{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
    return float(match[1]) if match else 0.0
