"""Fixtures that all folders share: a complete daemon in processes of its own."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

ROOT = Path(__file__).parent.parent
START_S = 120.0
END_S = 60.0

# The longest files come first, so that the workers end at about the same time.
LONGEST_FIRST = (
    "test_equality_smollm2.py",
    "test_faults.py",
    "test_equality.py",
    "test_retraction_smollm2.py",
    "test_triton_paged.py",
    "test_end.py",
    "test_mutations.py",
    "test_session_mutations.py",
    "test_sessions_http.py",
)

DAEMON_FIXTURES = {"start_daemon", "start_shared_daemon"}

StartDaemon = Callable[..., "Daemon"]


def pytest_configure() -> None:
    """Under nohup, or in the background of a script, signals are ignored, and every child would inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def short_tmp(tmp_path: Path) -> Iterator[Path]:
    """A folder with a short path, because the path of a socket has little room.

    It asks for ``tmp_path`` so that pytest's own folder exists before a test sets ``tempfile.tempdir`` to this one.
    """
    path = Path(tempfile.mkdtemp(prefix="ebb-test-"))
    yield path
    shutil.rmtree(path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first. Mark tests that start a daemon as ``daemon`` and ``slow``."""
    order = {name: index for index, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    for item in items:
        if DAEMON_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("daemon")
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Exempt the objects that imports created from garbage collection: collecting them takes half a second."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Undo the exemption: at the end of the process, nanobind reports objects that were never collected."""
    gc.unfreeze()


class Daemon:
    """``ebbtide serve`` with its own temporary directory, so that every file that it leaves behind is found.

    model: "" for none.

    url: "http://127.0.0.1:PORT". pids: by process name, once ready.
    """

    def __init__(self, flags: tuple[str, ...], model: str = "sim", tmp: Path | None = None) -> None:
        self.tmp = tmp or Path(tempfile.mkdtemp(prefix="ebb-test-"))  # short, because the path of a socket has a limit
        log, name = tempfile.mkstemp(prefix="ebb-test-", suffix=".log")
        self._log = Path(name)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ebbtide.server.cli", "serve", *([model] if model else []), "--port", "0", *flags],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(self.tmp), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=log,
        )
        os.close(log)
        self.url = ""
        self.pids: dict[str, int] = {"front": self.process.pid}
        self._family = [psutil.Process(self.process.pid)]

    @property
    def is_running(self) -> bool:
        """True if every process that was running at the start is still running."""
        return self.process.poll() is None and all(process.is_running() for process in self._family)

    @property
    def log(self) -> str:
        """The stderr output of all processes so far."""
        return self._log.read_text()

    def becomes_idle(self, timeout_s: float = 10.0) -> bool:
        """Poll until no HTTP request is open. True at once if its metrics need an API key."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            page = httpx.get(f"{self.url}/metrics", timeout=60, verify=False)
            if page.status_code == 401 or re.search(
                r"^ebbtide:open_http_requests\{.*\} 0\.0$", page.text, re.MULTILINE
            ):
                return True
        return False

    def wait_until_ready(self) -> None:
        """Wait until the daemon has printed its URL."""
        out = self._read_stdout_until(b"Try it")
        assert out, f"the daemon ended before it was ready:\n{self.log}"
        self.url = out.decode().split()[out.decode().split().index("on") + 1]
        for child in psutil.Process(self.process.pid).children():
            self._family.append(child)
            self.pids[child.cmdline()[0].removeprefix("ebbtide::")] = child.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the front process, as a terminal or a supervisor does."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = END_S) -> int:
        """Wait until the daemon has exited. Returns the exit code."""
        return self.process.wait(timeout_s)

    def leftovers(self) -> list[str]:
        """Return the processes and files that still exist some seconds after the daemon has exited."""
        _, alive = psutil.wait_procs(self._family, 10.0)
        return [str(process) for process in alive] + [str(path) for path in self.tmp.rglob("*")]

    def close(self) -> None:
        """End all remaining processes. Can be called in any state."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.unlink(missing_ok=True)
        shutil.rmtree(self.tmp, ignore_errors=True)  # another daemon of the same test may have used the port

    def _read_stdout_until(self, mark: bytes) -> bytes:
        assert self.process.stdout is not None
        fd, out, deadline = self.process.stdout.fileno(), b"", time.monotonic() + START_S
        while mark not in out:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(fd, 65536) if ready else b""
            if not chunk:
                return b""
            out += chunk
        return out


def _end_well(daemon: Daemon) -> None:
    """Send SIGTERM unless the daemon has ended; check that the exit code is 0 and that nothing is left behind."""
    try:
        if daemon.process.poll() is None:
            daemon.signal(signal.SIGTERM)
            assert daemon.wait() == 0, daemon.log
            assert daemon.leftovers() == []
    finally:
        daemon.close()


@contextlib.contextmanager
def _starter() -> Iterator[StartDaemon]:
    with contextlib.ExitStack() as ends:  # end each daemon, also if the end of another one failed

        def start(*flags: str, model: str = "sim", tmp: Path | None = None, ready: bool = True) -> Daemon:
            daemon = Daemon(flags, model, tmp)
            ends.callback(_end_well, daemon)
            if ready:
                daemon.wait_until_ready()
            return daemon

        yield start


@pytest.fixture
def start_daemon() -> Iterator[StartDaemon]:
    """Starts daemons: ``start_daemon(*flags, model="sim", tmp=None, ready=True)``.

    Each must end well after the test, unless the test has ended it.
    """
    with _starter() as start:
        yield start


@pytest.fixture(scope="session")
def shared_daemons() -> dict[tuple[str, ...], Daemon]:
    """Holds the running daemons that tests share, by model and flags."""
    return {}


@pytest.fixture(scope="session")
def kept_daemons() -> set[tuple[str, ...]]:
    """The keys of the shared daemons that run until the end of the session."""
    return set()


@pytest.fixture(scope="session")
def start_shared_daemon(
    shared_daemons: dict[tuple[str, ...], Daemon], kept_daemons: set[tuple[str, ...]]
) -> Iterator[StartDaemon]:
    """Returns the shared daemon with these flags: ``start_shared_daemon(*flags, model="sim", keep=False)``.

    A test must not end it, leave requests in it, or expect a counter to be 0. After the last test of the file, the
    daemon must end with exit code 0; with ``keep``, which fixtures of the session need, after the last test of all.
    """
    with _starter() as start:

        def get(*flags: str, model: str = "sim", keep: bool = False) -> Daemon:
            key = (model, *flags)
            if key not in shared_daemons:
                shared_daemons[key] = start(*flags, model=model)
            if keep:
                kept_daemons.add(key)
            return shared_daemons[key]

        yield get


@pytest.fixture(autouse=True)
def keep_shared_daemons_running(shared_daemons: dict[tuple[str, ...], Daemon]) -> Iterator[None]:
    """Fail the test in which a shared daemon ends. The next test that asks for its flags gets a new one."""
    yield
    ended = [key for key, daemon in shared_daemons.items() if not daemon.is_running]
    logs = [shared_daemons.pop(key).log for key in ended]
    assert not ended, f"this test ended the shared daemons {ended}:\n{logs}"


@pytest.fixture(scope="module", autouse=True)
def leave_no_requests_in_shared_daemons(
    shared_daemons: dict[tuple[str, ...], Daemon], kept_daemons: set[tuple[str, ...]]
) -> Iterator[None]:
    """Fail the last test of a file that leaves requests in a shared daemon. Other files get a new daemon.

    Ends the daemons that are not kept: an idle daemon uses up to 3 % of a core on a busy machine.
    """
    yield
    busy = [key for key, daemon in shared_daemons.items() if not daemon.becomes_idle()]
    for key in busy:
        kept_daemons.discard(key)
        del shared_daemons[key]
    for key in [key for key in shared_daemons if key not in kept_daemons]:
        _end_well(shared_daemons.pop(key))
    assert not busy, f"this file left requests in the shared daemons {busy}"


@pytest.fixture
def daemon(request: pytest.FixtureRequest, start_daemon: StartDaemon) -> Daemon:
    """A daemon for this test only.

    With flags: ``@pytest.mark.parametrize("daemon", [("--page-size", "1")], indirect=True)``.
    """
    return start_daemon(*getattr(request, "param", ()))


@pytest.fixture(scope="session")
def shared_daemon(start_shared_daemon: StartDaemon) -> Daemon:
    """One daemon for all tests that leave no state in it."""
    return start_shared_daemon(keep=True)
