import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import psutil
import pytest

from ebbtide.config import LogConfig
from ebbtide.runtime.child import Child, Status, stop_children

HERE = Path(__file__).parent
sys_path_entry = str(HERE)


@pytest.fixture(autouse=True)
def tiny_child_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", sys_path_entry)
    monkeypatch.syspath_prepend(sys_path_entry)


@pytest.fixture
def start() -> Iterator[Callable[[], Child]]:
    """Starts children, and ends them after the test."""
    children: list[Child] = []

    def start_one() -> Child:
        children.append(Child("tiny_child", "tiny"))
        return children[-1]

    yield start_one
    stop_children(children, 0.0)


@pytest.fixture
def child(start: Callable[[], Child]) -> Child:
    return start()


def tell(
    child: Child,
    behaviour: str,
    ballast: str = "",
    *,
    level: Literal["debug", "info"] = "debug",
    ends_twice: bool = False,
) -> None:
    from tiny_child import TinySection  # type: ignore[import-not-found]

    child.send(TinySection(behaviour, LogConfig(level), ballast, ends_twice))


def statuses(child: Child) -> list[Status]:
    """All status lines until "ready" or the child's end."""
    seen: list[Status] = []
    while True:
        select.select([child.status_fd], [], [], 20)
        lines = child.read_status()
        if lines is None:
            return seen
        seen += lines
        if seen and seen[-1].kind == "ready":
            return seen


def test_a_child_reports_progress_and_then_that_it_is_ready(child: Child) -> None:
    tell(child, "stay")
    progress, ready = statuses(child)
    assert progress == Status("progress", "loading")
    assert ready.runner is not None
    assert ready.runner.context_length == 100


def test_sigterm_ends_a_child_with_exit_code_zero(child: Child) -> None:
    tell(child, "stay")
    statuses(child)
    stop_children([child], 10.0)
    assert child.exit_code == 0
    assert not psutil.pid_exists(child.pid)


def test_children_ignore_sigint_and_lead_their_own_session(child: Child) -> None:
    tell(child, "stay")
    statuses(child)
    assert os.getsid(child.pid) == child.pid
    os.kill(child.pid, signal.SIGINT)
    stop_children([child], 10.0)
    assert child.exit_code == 0


@pytest.mark.parametrize("level", ["info", "debug"])
def test_startup_error_reaches_the_parent_as_one_sentence_and_debug_shows_its_traceback(
    level: Literal["info", "debug"], start: Callable[[], Child], capfd: pytest.CaptureFixture[str]
) -> None:
    child = start()  # within the test, or its stderr would not be capfd's
    tell(child, "fail", level=level)
    assert statuses(child)[-1] == Status("failed", "There is no moon tonight.")
    stop_children([child], 10.0)
    assert child.exit_code == 1
    assert ("Traceback" in capfd.readouterr().err) is (level == "debug")


def test_unknown_error_is_logged_with_its_traceback(
    start: Callable[[], Child], capfd: pytest.CaptureFixture[str]
) -> None:
    child = start()  # within the test, or its stderr would not be capfd's
    tell(child, "break")
    assert statuses(child)[-1].kind == "progress"
    assert child.exit_description() == "The tiny process ended with exit code 1; its log says why."
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err


@pytest.mark.parametrize(("behaviour", "code"), [("fail", 1), ("return", 0), ("stay", 0)])
def test_sigterm_while_a_child_exits_changes_nothing(
    behaviour: str, code: int, start: Callable[[], Child], capfd: pytest.CaptureFixture[str]
) -> None:
    child = start()  # within the test, or its stderr would not be capfd's
    tell(child, behaviour, level="info", ends_twice=True)
    statuses(child)
    stop_children([child], 10.0)
    assert child.exit_code == code
    assert capfd.readouterr().err == ""


def test_a_child_that_receives_sigterm_is_described_without_the_sender(child: Child) -> None:
    tell(child, "stay")
    statuses(child)
    os.kill(child.pid, signal.SIGTERM)
    said = "The tiny process ended with exit code 0, as on SIGTERM; its log does not name the sender."
    assert child.exit_description() == said


def test_killed_child_is_described_by_its_signal(child: Child) -> None:
    tell(child, "stay")
    statuses(child)
    os.kill(child.pid, signal.SIGKILL)
    assert statuses(child) == []
    assert child.exit_description().startswith("The tiny process was killed by signal 9.")


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(child: Child) -> None:
    tell(child, "stubborn")
    statuses(child)
    stop_children([child], 0.2)
    assert child.exit_code == -signal.SIGKILL


def test_a_child_without_a_section_ends_on_sigterm(child: Child) -> None:
    stop_children([child], 10.0)
    assert child.exit_code in (0, -signal.SIGTERM)


def test_a_section_for_a_dead_child_is_not_an_error(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    assert statuses(child) == []
    tell(child, "stay", "x" * 1_000_000)


def test_large_sections_arrive_whole(child: Child) -> None:
    tell(child, "length", "x" * 3_000_000)
    assert statuses(child)[-2].text == "3000000"


def test_child_has_its_title_and_nothing_to_read(child: Child) -> None:
    tell(child, "title")
    assert statuses(child)[-2].text == "ebbtide::tiny"
    assert psutil.Process(child.pid).cmdline()[0] == "ebbtide::tiny"


def test_stdin_of_a_child_is_empty_after_its_section(child: Child) -> None:
    tell(child, "stdin")
    assert statuses(child)[-2].text == "b''"


def test_section_is_not_in_the_arguments_or_environment(child: Child) -> None:
    tell(child, "length", "secret-marker")
    statuses(child)
    process = psutil.Process(child.pid)
    assert "secret-marker" not in " ".join(process.cmdline()) + " ".join(process.environ().values())


PARENT = """
import select, sys
from ebbtide.runtime.child import Child
from ebbtide.config import LogConfig
from tiny_child import TinySection  # type: ignore[import-not-found]
child = Child("tiny_child", "tiny")
if sys.argv[1] == "loaded":
    child.send(TinySection("stay", LogConfig()))
    while not any(status.kind == "ready" for status in child.read_status()):
        select.select([child.status_fd], [], [])
print(child.pid, flush=True)
select.select([], [], [])
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["loaded", "starting"])
def test_kill_of_the_parent_leaves_no_child(moment: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, moment], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout:
        orphan = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert orphan.wait(10) is None or not orphan.is_running()


def test_stop_children_is_safe_to_repeat(child: Child) -> None:
    started = time.monotonic()
    stop_children([child], 10.0)
    stop_children([child], 10.0)
    assert time.monotonic() - started < 60


def test_a_killed_child_reports_the_reason(child: Child) -> None:
    tell(child, "stay")
    statuses(child)
    assert not child.was_stuck
    child.kill("had been silent for 3 s")
    assert child.exit_description() == "The tiny process was killed because it had been silent for 3 s."
    assert child.was_stuck
    child.kill("had been silent for 4 s")  # the process has ended: no error


def test_a_child_dumps_its_stacks_on_request_and_continues(
    start: Callable[[], Child], capfd: pytest.CaptureFixture[str]
) -> None:
    child = start()
    child.request_dump()  # the child has not reported yet: the signal would end it
    tell(child, "stay")
    statuses(child)
    child.request_dump()
    deadline = time.monotonic() + 20
    heard = ""
    while "tiny_child.py" not in heard and time.monotonic() < deadline:
        heard += capfd.readouterr().err
    assert "tiny_child.py" in heard
    assert child.exit_code is None


def test_a_child_that_its_watchdog_ended_is_distinguished(child: Child) -> None:
    tell(child, "stuck")
    assert select.select([child.status_fd], [], [], 20)[0]
    assert "was ended by its watchdog" in child.exit_description()
    assert child.was_stuck
