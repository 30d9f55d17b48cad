"""Processes that die, stop or hang with open requests: each request gets one outcome, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ..server.metrics.request_terms import RECEIVED
from .adding_up import adding_up
from .streaming import error_at_the_end, rest, streams

ROOT = Path(__file__).parent.parent.parent
STUCK = 70
SLACK_S = 2.0  # tolerance for a loaded machine
TIMEOUT_S = 3.0
SLOW = ("--sim-step-ms", "5")
WATCHED = ("--watchdog-timeout", f"{TIMEOUT_S}", "--heartbeat-timeout", "1.2")
VICTIMS = ("scheduler", "detokenizer")


def ask(url: str, **body: Any) -> httpx.Response:
    body = {"model": "sim", "prompt": "tide", "max_tokens": 8, "ignore_eos": True} | body
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def until(true: Callable[[], bool], seconds: float = 60.0) -> float:
    """Poll until the claim holds. Returns the seconds it took."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds, "it never came true"
        time.sleep(0.02)
    return time.monotonic() - started


def ready(url: str) -> bool:
    return httpx.get(f"{url}/ready", timeout=60).status_code == 200


def not_ready_because(url: str) -> str | None:
    reply = httpx.get(f"{url}/ready", timeout=60)
    return None if reply.status_code == 200 else str(reply.json()["error"]["code"])


def total(url: str, name: str) -> float:
    page = httpx.get(f"{url}/metrics", timeout=60).text
    found = re.search(rf"^ebbtide:{name}\{{[^}}]*\}} (\S+)$", page, re.MULTILINE)
    assert found, page
    return float(found[1])


def children(daemon: Any) -> dict[str, int]:
    """Return the current engine processes."""
    found = psutil.Process(daemon.process.pid).children()
    return {child.cmdline()[0].removeprefix("ebbtide::"): child.pid for child in found if child.cmdline()}


def kill_in_rounds(daemon: Any, rounds: int, num_streams: int) -> None:
    """Kill one child after another under open streams; the daemon must recover each time."""
    pids, num_asked = daemon.pids, 0
    for number in range(rounds):
        victim = VICTIMS[number % 2]
        before = total(daemon.url, "prompt_tokens_total")
        choices = 1 + number % 2
        with streams(daemon.url, num_streams, n=choices) as opened:
            started = time.monotonic()
            os.kill(pids[victim], signal.SIGKILL)
            for events in opened:
                assert error_at_the_end(events)["code"] == "engine_dead"
            assert time.monotonic() - started < 2.0 + SLACK_S
        refused = ask(daemon.url)
        assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
        num_asked += num_streams * choices
        assert total(daemon.url, RECEIVED) == num_asked  # exact, because no engine is alive
        until(lambda: ready(daemon.url))
        pids = children(daemon)
        assert ask(daemon.url).json()["usage"]["completion_tokens"] == 8
        num_asked += 1
        until(lambda before=before: total(daemon.url, "prompt_tokens_total") >= before + 4)  # type: ignore[misc]
    assert daemon.log.count("was killed by signal 9") == rounds


def ends_with_nothing_left(daemon: Any, code: int) -> None:
    assert daemon.wait(30) == code, daemon.log
    assert daemon.leftovers() == []


def test_a_killed_engine_is_restarted_under_the_running_front(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW, "--restart-on-failure", "3")
    with adding_up(daemon.url):
        kill_in_rounds(daemon, rounds=3, num_streams=6)
    (directory,) = daemon.tmp.iterdir()
    names = ["daemon.json", "detokenizer-3", "front-3", "lock", "scheduler-3"]
    assert sorted(path.name for path in directory.iterdir()) == names
    os.kill(children(daemon)["scheduler"], signal.SIGKILL)
    ends_with_nothing_left(daemon, 1)


def test_a_signal_during_a_restart_ends_the_daemon_cleanly(start_daemon: Any) -> None:
    daemon = start_daemon("--restart-on-failure", "1")
    os.kill(daemon.pids["detokenizer"], signal.SIGKILL)
    until(lambda: not ready(daemon.url))
    daemon.signal(signal.SIGTERM)
    ends_with_nothing_left(daemon, 0)


def test_a_death_while_draining_is_a_failure_without_restart(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW, "--restart-on-failure", "1")
    with streams(daemon.url, 2) as opened:
        daemon.signal(signal.SIGTERM)
        until(lambda: not_ready_because(daemon.url) == "draining")
        os.kill(daemon.pids["scheduler"], signal.SIGKILL)
        for events in opened:
            assert error_at_the_end(events)["code"] == "engine_dead"
    ends_with_nothing_left(daemon, 1)
    assert "started again" not in daemon.log


def test_an_engine_that_cannot_restart_uses_up_its_restarts(start_daemon: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text("{}")
    daemon = start_daemon("--sim-script", str(script), "--restart-on-failure", "2")
    script.unlink()
    os.kill(daemon.pids["scheduler"], signal.SIGKILL)
    ends_with_nothing_left(daemon, 1)
    assert daemon.log.count("restarting the engine in") == 2


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_stopped_child_is_not_ready_and_times_out(start_daemon: Any, victim: str) -> None:
    daemon = start_daemon(*SLOW, *WATCHED)
    with streams(daemon.url, 4) as opened:
        started = time.monotonic()
        os.kill(daemon.pids[victim], signal.SIGSTOP)
        until(lambda: not_ready_because(daemon.url) == "engine_silent")
        assert httpx.get(f"{daemon.url}/health", timeout=60).status_code == 200
        for events in opened:
            assert error_at_the_end(events)["code"] == "engine_dead"
        assert time.monotonic() - started < 1.1 * TIMEOUT_S + SLACK_S
    ends_with_nothing_left(daemon, STUCK)
    assert f"The {victim} process was killed because it had been silent for" in daemon.log
    dump = daemon.log.split(f"==== front: the {victim} has been silent for")[1].split("end of front's dump")[0]
    for part in ("State T (stopped)", f"{victim} reported:", "open HTTP requests: 4, with 4 choices"):
        assert part in dump, dump


def test_a_request_timeout_applies_while_the_engine_is_stopped(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW)
    os.kill(daemon.pids["scheduler"], signal.SIGSTOP)
    started = time.monotonic()
    reply = ask(daemon.url, timeout=1)
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")
    assert time.monotonic() - started < 30
    os.kill(daemon.pids["scheduler"], signal.SIGCONT)
    assert ask(daemon.url).json()["usage"]["completion_tokens"] == 8
    until(lambda: total(daemon.url, "num_running_reqs") == 0)


@pytest.mark.parametrize("victim", VICTIMS)
def test_an_idle_stopped_child_times_out_too(start_daemon: Any, victim: str) -> None:
    daemon = start_daemon(*WATCHED)
    os.kill(daemon.pids[victim], signal.SIGSTOP)
    ends_with_nothing_left(daemon, STUCK)


def test_a_child_that_resumes_in_time_loses_nothing(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW, *WATCHED)
    with streams(daemon.url, 3, max_tokens=400) as opened:
        for victim in VICTIMS:
            os.kill(daemon.pids[victim], signal.SIGSTOP)
            until(lambda: not_ready_because(daemon.url) == "engine_silent")
            os.kill(daemon.pids[victim], signal.SIGCONT)
            until(lambda: ready(daemon.url))
        for events in opened:
            *_, finish, done = rest(events)
            assert json.loads(finish)["choices"][0]["finish_reason"] == "length"
            assert done == "[DONE]"


def test_a_front_that_was_stopped_kills_no_child(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW, *WATCHED)
    with streams(daemon.url, 6, max_tokens=300) as opened:
        daemon.signal(signal.SIGSTOP)
        time.sleep(1.5 * TIMEOUT_S)  # the elapsed time is under test
        daemon.signal(signal.SIGCONT)
        for events in opened:
            got = rest(events)
            assert got.count("[DONE]") == 1
            assert got[-1] == "[DONE]"
            assert sum('"finish_reason":"length"' in event.replace(" ", "") for event in got) == 1
    assert ready(daemon.url)
    assert children(daemon) == {name: pid for name, pid in daemon.pids.items() if name != "front"}


def test_a_step_that_hangs_is_ended_by_the_watchdog_with_a_dump(start_daemon: Any) -> None:
    daemon = start_daemon("--sim-step-ms", "600000", *WATCHED)
    started = time.monotonic()
    reply = ask(daemon.url, prompt="secret")
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "engine_dead")
    assert TIMEOUT_S <= time.monotonic() - started < 1.1 * TIMEOUT_S + SLACK_S
    ends_with_nothing_left(daemon, STUCK)
    assert "The scheduler process was ended by its watchdog" in daemon.log
    for part in ("==== watchdog: no progress for", "accounting of pool full", "batch of 1", "sim.py:", "end of dump"):
        assert part in daemon.log, part
    assert "secret" not in daemon.log


def test_a_hung_engine_is_restarted_too(start_daemon: Any) -> None:
    daemon = start_daemon("--sim-step-ms", "600000", *WATCHED, "--restart-on-failure", "1")
    assert ask(daemon.url).status_code == 500
    until(lambda: ready(daemon.url))
    assert total(daemon.url, "watchdog_last_progress_seconds") == 0
    assert ask(daemon.url).status_code == 500
    ends_with_nothing_left(daemon, STUCK)


def test_the_soft_watchdog_dumps_and_lets_the_step_end(start_daemon: Any) -> None:
    daemon = start_daemon("--sim-step-ms", "1500", "--soft-watchdog-timeout", "0.5")
    assert ask(daemon.url, max_tokens=1).status_code == 200
    assert "==== soft watchdog: no progress for" in daemon.log


def run_dump(tmp: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ebbtide.server.cli", "dump", *flags]
    env = os.environ | {"TMPDIR": str(tmp)}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_dump_of_a_busy_daemon_shows_both_processes_and_disturbs_no_request(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW, "--max-running-requests", "2")
    with streams(daemon.url, 2, max_tokens=400) as opened:
        shown = run_dump(daemon.tmp)
        assert shown.returncode == 0, shown
        for part in ("open HTTP requests: 2", "scheduler reported: ", "batch of 2", "accounting of pool full"):
            assert part in shown.stdout, shown.stdout
        for events in opened:
            assert rest(events)[-1] == "[DONE]"
    assert "detokenizer/process.py" in daemon.log  # it writes its stacks to the log


def test_the_dump_command_lists_the_running_daemons(start_daemon: Any, tmp_path: Path) -> None:
    assert run_dump(tmp_path).stderr == f"ebbtide: No running server was found in {tmp_path} (TMPDIR).\n"
    first = start_daemon(ready=False)
    second = start_daemon(ready=False, tmp=first.tmp)
    for daemon in (first, second):
        daemon.wait_until_ready()
    asked = run_dump(first.tmp)
    pids = ", ".join(str(pid) for pid in sorted((first.process.pid, second.process.pid)))
    assert (asked.returncode, asked.stderr) == (1, f"ebbtide: Running servers: {pids}. Select one with --pid.\n")
    assert "You have no running server with process id 1" in run_dump(first.tmp, "--pid", "1").stderr
    assert "==== end of dump ====" in run_dump(first.tmp, "--pid", str(second.process.pid)).stdout
    second.signal(signal.SIGTERM)
    assert second.wait() == 0


@pytest.mark.soak
def test_twenty_rounds_of_kills_under_fifty_streams(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW, "--restart-on-failure", "20")
    kill_in_rounds(daemon, rounds=20, num_streams=50)


@pytest.mark.soak
@pytest.mark.parametrize("victim", VICTIMS)
def test_twenty_rounds_of_stops_under_fifty_streams(start_daemon: Any, victim: str) -> None:
    daemon = start_daemon(*SLOW, *WATCHED, "--restart-on-failure", "20")
    for _ in range(20):
        pids = children(daemon)
        with streams(daemon.url, 50) as opened:
            started = time.monotonic()
            os.kill(pids[victim], signal.SIGSTOP)
            for events in opened:
                assert error_at_the_end(events)["code"] == "engine_dead"
            assert time.monotonic() - started < 1.1 * TIMEOUT_S + SLACK_S
        until(lambda: ready(daemon.url))


@pytest.mark.soak
def test_twenty_stops_of_the_front_under_fifty_streams(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW, *WATCHED)
    for _ in range(20):
        with streams(daemon.url, 50, max_tokens=400) as opened:
            daemon.signal(signal.SIGSTOP)
            time.sleep(1.5 * TIMEOUT_S)
            daemon.signal(signal.SIGCONT)
            for events in opened:
                got = rest(events)
                assert got.count("[DONE]") == 1
                assert got[-1] == "[DONE]"


@pytest.mark.soak
def test_ten_minutes_of_slow_steps_and_idle_gaps_raise_no_alarm(start_daemon: Any) -> None:
    daemon = start_daemon("--sim-step-ms", "200", *WATCHED, "--soft-watchdog-timeout", "1")
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        with streams(daemon.url, 5, max_tokens=40) as opened:
            for events in opened:
                assert rest(events)[-1] == "[DONE]"
        time.sleep(7.0)  # idle for longer than the watchdog timeout
        assert ready(daemon.url)
    assert "====" not in daemon.log
