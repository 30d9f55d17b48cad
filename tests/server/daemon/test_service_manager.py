"""The messages to systemd, received on a real socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.server.daemon.service_manager import take_service_manager


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        yield listening


def received(systemd: socket.socket) -> list[str]:
    return systemd.recv(4096).decode().split("\n")


def received_so_far(systemd: socket.socket) -> list[str]:
    """Every message that has arrived."""
    systemd.setblocking(False)
    messages = []
    try:
        while True:
            messages += received(systemd)
    except BlockingIOError:
        return messages


def test_assignments_arrive_in_one_message(systemd: socket.socket) -> None:
    take_service_manager({"NOTIFY_SOCKET": systemd.getsockname()}).notify("READY=1", "STATUS=serving")
    assert received(systemd) == ["READY=1", "STATUS=serving"]


def test_an_abstract_socket_works_too() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("")  # the kernel chooses an abstract name
        systemd.settimeout(10)
        name = "@" + systemd.getsockname()[1:].decode()
        take_service_manager({"NOTIFY_SOCKET": name}).notify("READY=1")
        assert received(systemd) == ["READY=1"]


def test_child_processes_do_not_inherit_the_variables() -> None:
    environment = {"NOTIFY_SOCKET": "/none", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "PATH": "/bin"}
    take_service_manager(environment)
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("address", ["", "relative/path", "vsock:2:1234"])
def test_without_a_usable_socket_nothing_is_sent_or_logged(address: str, caplog: pytest.LogCaptureFixture) -> None:
    take_service_manager({"NOTIFY_SOCKET": address} if address else {}).notify("READY=1")
    assert caplog.records == []


def test_a_socket_without_a_reader_is_logged_and_harmless(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    take_service_manager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).notify("READY=1")
    (record,) = caplog.records
    assert record.getMessage().startswith("the service manager was not notified of READY=1: ")


def test_the_watchdog_gets_messages_only_while_the_daemon_is_healthy(systemd: socket.socket) -> None:
    reasons = iter([None, "The scheduler process is dead.", None])

    async def scene() -> None:
        done = asyncio.Event()

        def unhealthy_reason() -> str | None:
            reason = next(reasons, "the end")
            if reason == "the end":
                done.set()
            return reason

        variables = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "3000", "WATCHDOG_PID": str(os.getpid())}
        alive = asyncio.create_task(take_service_manager(variables).keep_alive(unhealthy_reason))
        await asyncio.wait_for(done.wait(), 10)
        alive.cancel()

    asyncio.run(scene())
    assert received_so_far(systemd) == ["WATCHDOG=1"] * 2


@pytest.mark.parametrize(
    "variables",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "3000", "WATCHDOG_PID": "1"}],
    ids=["unset", "off", "no number", "of another process"],
)
def test_without_a_watchdog_of_its_own_nothing_is_sent(systemd: socket.socket, variables: dict[str, str]) -> None:
    manager = take_service_manager(variables | {"NOTIFY_SOCKET": systemd.getsockname()})
    asyncio.run(asyncio.wait_for(manager.keep_alive(lambda: None), 10))
    assert received_so_far(systemd) == []
