"""A daemon as a service of systemd with Type=notify: what arrives on the notification socket, and when."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

WATCHDOG_S = 0.3


def test_ready_then_alive_then_stopping(start_daemon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(120)
        monkeypatch.setenv("NOTIFY_SOCKET", systemd.getsockname())
        monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
        daemon = start_daemon(ready=False)
        first = systemd.recv(4096).decode().split("\n")
        url = first[1].removeprefix("STATUS=serving on ")
        assert first[0] == "READY=1"
        assert httpx.get(f"{url}/ready", timeout=60).status_code == 200
        assert [systemd.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        daemon.signal(signal.SIGTERM)
        last = b""
        while not last.startswith(b"STOPPING"):
            last = systemd.recv(4096)
        assert last == b"STOPPING=1\nSTATUS=draining 0 open requests"
        assert daemon.wait() == 0
