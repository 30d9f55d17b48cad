"""The complete command without a terminal, with a real daemon."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[3]
LIMIT_S = 60.0
REPORT = re.compile(r"\[(\d+) tokens reused \+ (\d+) new; first token after [\d.]+ s, (\d+) tokens in [\d.]+ s")


class Chat:
    """``ebbtide chat`` as its user sees it: ``shown`` on stdout, ``notes`` on stderr."""

    def __init__(self, url: str, *flags: str) -> None:
        self.shown = ""
        self.notes = ""
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ebbtide.server.cli",
                "chat",
                "--base-url",
                f"{url}/v1",
                "--temperature",
                "0",
                *flags,
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        stdin, stdout, stderr = self.process.stdin, self.process.stdout, self.process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._pipes = (stdin, stdout, stderr)
        self._streams = selectors.DefaultSelector()
        self._streams.register(stdout, selectors.EVENT_READ, "shown")
        self._streams.register(stderr, selectors.EVENT_READ, "notes")

    def say(self, *lines: str) -> None:
        """Type lines."""
        self._pipes[0].write("".join(f"{line}\n" for line in lines).encode())
        self._pipes[0].flush()

    def until(self, claim: Callable[[], bool]) -> None:
        """Read the output until ``claim`` is true."""
        deadline = time.monotonic() + LIMIT_S
        while not claim():
            ready = self._streams.select(deadline - time.monotonic())
            assert ready, f"it says no more: {self.shown!r} {self.notes!r}"
            for key, _ in ready:
                text = os.read(key.fd, 65536).decode()
                assert text, f"it has ended: {self.shown!r} {self.notes!r}"
                setattr(self, key.data, getattr(self, key.data) + text)

    def until_answers(self, count: int) -> list[tuple[int, ...]]:
        """Wait until this many answers are reported. Returns (reused, new, output tokens) of each."""
        self.until(lambda: len(REPORT.findall(self.notes)) >= count)
        return [tuple(map(int, numbers)) for numbers in REPORT.findall(self.notes)]

    def end(self) -> int:
        """Close the input. Returns the exit code."""
        shown, notes = self.process.communicate(timeout=LIMIT_S)
        self.shown += shown.decode()
        self.notes += notes.decode()
        return self.process.returncode

    def close(self) -> None:
        """End the process if it is still running."""
        self._streams.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):  # the process ended before it read the input
                pipe.close()


@pytest.fixture
def start_chat() -> Iterator[Callable[..., Chat]]:
    chats: list[Chat] = []

    def start(url: str, *flags: str) -> Chat:
        chats.append(Chat(url, *flags))
        return chats[-1]

    yield start
    for chat in chats:
        chat.close()


def sessions(url: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = httpx.get(f"{url}/v1/sessions").json()["data"]
    return listed


def test_a_piped_conversation_reuses_its_tokens_and_closes_its_session(
    start_shared_daemon: Any, start_chat: Any
) -> None:
    daemon = start_shared_daemon("--enable-streaming-session")
    chat = start_chat(daemon.url, "--max-tokens", "40", "--system", "Be brief.")
    chat.say("hello " * 10, "", "again", "/usage", "/session", "/what?", "more")
    first, second, third = chat.until_answers(3)
    assert len(sessions(daemon.url)) == 1
    assert chat.end() == 0
    assert first[0] == 0
    for before, after in ((first, second), (second, third)):
        assert after[0] >= sum(before) - 16, "all but the last page of what was said before"
    assert "2 turns" in chat.notes
    assert "of them in the KV cache" in chat.notes
    assert "/quit" in chat.notes
    assert len(chat.shown.splitlines()) == 3
    assert sessions(daemon.url) == []


def test_ctrl_c_stops_an_answer_and_discards_its_turn(start_daemon: Any, start_chat: Any) -> None:
    daemon = start_daemon("--enable-streaming-session", "--sim-step-ms", "20")
    chat = start_chat(daemon.url)
    chat.say("short", "/new")  # a conversation before this one changes nothing
    chat.until(lambda: "Started a new conversation." in chat.notes)
    started = len(chat.shown)
    chat.say("tell me everything")
    chat.until(lambda: len(chat.shown) > started + 3)
    chat.process.send_signal(signal.SIGINT)
    chat.until(lambda: "Stopped" in chat.notes)
    chat.say("/session", "next")
    chat.until(lambda: "turns" in chat.notes)
    assert "0 turns, 0 tokens" in chat.notes
    [answers] = chat.until_answers(2)[1:]
    assert answers[:2] == (0, len("next") + 3)
    chat.say("/quit")
    assert chat.end() == 0


def test_ctrl_c_twice_at_the_prompt_ends(shared_daemon: Any, start_chat: Any) -> None:
    chat = start_chat(shared_daemon.url, "--max-tokens", "1")
    chat.say("x")
    chat.until_answers(1)
    chat.process.send_signal(signal.SIGINT)
    chat.until(lambda: "again or enter" in chat.notes)
    chat.process.send_signal(signal.SIGINT)
    assert chat.end() == 0


def test_the_chat_continues_after_a_restart_of_the_engine_or_the_server(start_daemon: Any, start_chat: Any) -> None:
    flags = ("--enable-streaming-session", "--restart-on-failure", "3")
    daemon = start_daemon(*flags)
    chat = start_chat(daemon.url, "--max-tokens", "20")
    chat.say("one")
    first = sum(chat.until_answers(1)[0])
    os.kill(daemon.pids["scheduler"], signal.SIGKILL)
    chat.say("two")
    second = chat.until_answers(2)[1]
    assert "The session was lost" in chat.notes
    assert second[:2] == (0, first + len("two") + 3 + 1 - ends(chat.shown))
    port = daemon.url.rpartition(":")[2]
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    chat.say("three")
    chat.until(lambda: "waiting until the server" in chat.notes.partition("connection was lost")[2])
    start_daemon(*flags, "--port", port)
    third = chat.until_answers(3)[2]
    assert third[0] == 0
    assert third[1] > sum(second)
    assert chat.end() == 0


def ends(shown: str) -> int:
    """True if the model ended the first answer, so that the end token is one of its tokens."""
    return int(len(shown.splitlines()[0]) < 20)


def test_without_the_flag_a_plain_session_is_used(shared_daemon: Any, start_chat: Any) -> None:
    chat = start_chat(shared_daemon.url, "--max-tokens", "40")
    chat.say("hello", "again")
    first, second = chat.until_answers(2)
    assert [session["streaming"] for session in sessions(shared_daemon.url)] == [False]
    assert second[0] >= sum(first) - 16
    assert chat.end() == 0


def test_a_question_without_an_answer_is_an_exit_code(start_daemon: Any, start_chat: Any) -> None:
    chat = start_chat(start_daemon("--context-length", "32").url, "--max-tokens", "5")
    chat.say("x" * 100)
    chat.until(lambda: "maximum context length" in chat.notes)
    assert chat.end() == 1


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_input_that_is_not_utf_8_is_one_sentence(
    shared_daemon: Any, start_chat: Any, locale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    chat = start_chat(shared_daemon.url, "--max-tokens", "1")
    chat.process.stdin.write("Zürich\n".encode("latin-1"))
    assert chat.end() == 1
    assert len(chat.notes.splitlines()) == 1
    assert "not UTF-8" in chat.notes


def test_without_a_server_there_is_one_sentence(start_chat: Any) -> None:
    chat = start_chat("http://127.0.0.1:9")
    assert chat.end() == 1
    assert len(chat.notes.splitlines()) == 1
    assert "No server" in chat.notes
