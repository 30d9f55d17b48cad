"""Every way in which a daemon ends: drained, aborted or failed. No process, file or open request may remain."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from .streaming import error_at_the_end, rest, streams

SLOW = ("--sim-step-ms", "5")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_idle_daemon_ends_at_once_with_exit_code_zero(start_daemon: Any, number: signal.Signals) -> None:
    daemon = start_daemon()
    started = time.monotonic()
    daemon.signal(number)
    assert daemon.wait() == 0
    assert time.monotonic() - started < 15
    assert daemon.leftovers() == []
    assert "Traceback" not in daemon.log


def test_a_signal_while_loading_exits_with_code_zero(start_daemon: Any) -> None:
    daemon = start_daemon(ready=False)
    front = psutil.Process(daemon.process.pid)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 30
    while not children and time.monotonic() < deadline:
        children = front.children()
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.log
    assert psutil.wait_procs(children, 10)[1] == []
    assert daemon.leftovers() == []


def test_draining_completes_open_requests_and_refuses_new_ones(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW)
    with streams(daemon.url, 3, max_tokens=200) as opened:
        daemon.signal(signal.SIGTERM)
        refused = _first_refusal(daemon.url)
        assert refused.json()["error"]["code"] == "draining"
        assert "Retry-After" in refused.headers
        for events in opened:
            *_, finish, done = rest(events)
            assert json.loads(finish)["choices"][0]["finish_reason"] == "length"
            assert done == "[DONE]"
    assert daemon.wait() == 0
    assert daemon.leftovers() == []


def _first_refusal(url: str) -> httpx.Response:
    """Wait until the process has exited: the signal takes a moment."""
    while True:
        response = httpx.post(
            f"{url}/v1/completions", json={"model": "sim", "prompt": "x", "max_tokens": 1}, timeout=60
        )
        if response.status_code != 200:
            assert response.status_code == 503
            return response


def test_a_second_signal_aborts_open_requests(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW)
    with streams(daemon.url, 2) as opened:
        daemon.signal(signal.SIGTERM)
        _first_refusal(daemon.url)
        started = time.monotonic()
        daemon.signal(signal.SIGTERM)
        for events in opened:
            assert error_at_the_end(events)["code"] == "draining"
    assert daemon.wait() == 0
    assert time.monotonic() - started < 15
    assert daemon.leftovers() == []


def test_requests_that_outlast_the_shutdown_timeout_are_aborted(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW, "--shutdown-timeout", "0.2")
    with streams(daemon.url, 1) as (events,):
        daemon.signal(signal.SIGINT)
        assert error_at_the_end(events)["code"] == "draining"
    assert daemon.wait() == 0
    assert daemon.leftovers() == []


def test_a_paused_daemon_does_not_wait_for_requests_that_cannot_end(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW, "--shutdown-timeout", "600")
    with streams(daemon.url, 1) as (events,):
        assert httpx.post(f"{daemon.url}/pause_generation", timeout=60).status_code == 200
        daemon.signal(signal.SIGTERM)
        assert error_at_the_end(events)["code"] == "draining"
    assert daemon.wait() == 0
    assert daemon.leftovers() == []


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
def test_the_death_of_a_child_fails_every_request_and_ends_the_daemon(start_daemon: Any, victim: str) -> None:
    daemon = start_daemon(*SLOW, "--max-running-requests", "4")
    with streams(daemon.url, 4) as opened:
        os.kill(daemon.pids[victim], signal.SIGKILL)
        for events in opened:
            error = error_at_the_end(events)
            assert (error["type"], error["code"]) == ("server_error", "engine_dead")
    assert daemon.wait(20) == 1
    assert f"The {victim} process was killed by signal 9" in daemon.log
    assert daemon.leftovers() == []


def test_kill_of_the_front_leaves_no_process_and_its_directory_goes_with_the_next_start(start_daemon: Any) -> None:
    daemon = start_daemon()
    daemon.signal(signal.SIGKILL)
    assert daemon.wait() == -signal.SIGKILL
    left = daemon.leftovers()
    assert all(path.startswith(str(daemon.tmp)) for path in left)
    assert left
    successor = start_daemon(tmp=daemon.tmp)
    assert [path for path in left if os.path.exists(path)] == []
    assert len(list(successor.tmp.iterdir())) == 1


def test_kill_of_the_front_in_the_middle_of_answers_leaves_no_process(start_daemon: Any) -> None:
    daemon = start_daemon(*SLOW)
    with streams(daemon.url, 2):
        daemon.signal(signal.SIGKILL)
        assert daemon.wait() == -signal.SIGKILL
    assert all(path.startswith(str(daemon.tmp)) for path in daemon.leftovers())


def test_kill_of_the_front_while_it_loads_leaves_no_process(start_daemon: Any) -> None:
    daemon = start_daemon(ready=False)
    front = psutil.Process(daemon.process.pid)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 30
    while len(children) < 2 and time.monotonic() < deadline:
        children = front.children()
    daemon.signal(signal.SIGKILL)
    assert daemon.wait() == -signal.SIGKILL
    assert psutil.wait_procs(children, 10)[1] == []


def test_long_prompts_without_a_token_change_neither_liveness_nor_readiness(start_daemon: Any) -> None:
    daemon = start_daemon("--sim-step-ms", "50", "--heartbeat-timeout", "2", "--watchdog-timeout", "2")
    body = {"model": "sim", "prompt": list(range(250)) * 80, "max_tokens": 1, "ignore_eos": True}
    started = time.monotonic()
    with ThreadPoolExecutor(2) as clients:
        replies = [clients.submit(httpx.post, f"{daemon.url}/v1/completions", json=body, timeout=60) for _ in range(2)]
        while not all(reply.done() for reply in replies):
            for probe in ("health", "ready"):
                assert httpx.get(f"{daemon.url}/{probe}", timeout=60).status_code == 200
    assert [reply.result().status_code for reply in replies] == [200, 200]
    assert time.monotonic() - started > 3  # longer than either grace period
