"""A daemon as a service of systemd with Type=notify: what arrives on the notification socket, and when."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

WATCHDOG_S = 0.3


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The service manager's end of the notification socket. The next daemon uses it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.settimeout(120)
        monkeypatch.setenv("NOTIFY_SOCKET", end.getsockname())
        monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
        yield end


def received_until(systemd: socket.socket, beginning: bytes) -> list[bytes]:
    """All messages up to the first one with this beginning, which is the last element."""
    messages = [systemd.recv(4096)]
    while not messages[-1].startswith(beginning):
        messages.append(systemd.recv(4096))
    return messages


def test_ready_then_alive_then_stopping(start_daemon: Any, systemd: socket.socket) -> None:
    daemon = start_daemon(ready=False)
    first = systemd.recv(4096).decode().split("\n")
    url = first[1].removeprefix("STATUS=serving on ")
    assert first[0] == "READY=1"
    assert httpx.get(f"{url}/ready", timeout=60).status_code == 200
    assert [systemd.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    daemon.signal(signal.SIGTERM)
    assert received_until(systemd, b"STOPPING")[-1] == b"STOPPING=1\nSTATUS=draining 0 open requests"
    assert daemon.wait() == 0


def test_the_daemon_is_alive_while_it_waits_before_a_restart_of_the_engine(
    start_daemon: Any, systemd: socket.socket
) -> None:
    """The wait of 0.5 s is longer than the watchdog's timeout."""
    daemon = start_daemon("--restart-on-failure", "1")
    received_until(systemd, b"WATCHDOG=1")
    os.kill(daemon.pids["scheduler"], signal.SIGKILL)
    messages = received_until(systemd, b"STATUS=the engine has failed and is restarting")
    assert messages.count(b"WATCHDOG=1") >= 2
    received_until(systemd, b"STATUS=serving with a restarted engine")
