"""A daemon of a source tree as a process, and the requests that are sent to it. Imports nothing of that tree."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from answer_forms import Varying, body_form
from recorded_cases import Ask, Setup

START_S = 180.0
ANSWER_S = 120.0
SETTLE_S = 30.0


class AnsweringDaemon:
    """``ebbtide serve`` of ``tree`` with the flags of ``setup``; it starts at once and is not ready yet."""

    def __init__(self, tree: Path, setup: Setup) -> None:
        self.setup = setup
        self._tree = tree
        self._dir = Path(tempfile.mkdtemp(prefix="ebb-rec-"))  # the path of a socket must be short
        (self._dir / "script.json").write_text(json.dumps(setup.script))
        (self._dir / "keys.txt").write_text("key-two\n")
        self._log = open(self._dir / "log", "w")  # noqa: SIM115 (closed with the daemon)
        flags = [flag.replace("{dir}", str(self._dir)) for flag in setup.flags]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ebbtide.server.cli", "serve", setup.model, "--port", "0", *flags],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "TMPDIR": str(self._dir), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._port = 0
        self._background: list[tuple[Ask, threading.Thread, list[Any]]] = []

    def wait_until_ready(self) -> None:
        """Return once it has printed its URL. Raises RuntimeError if it ends before that."""
        assert self._process.stdout is not None
        timer = threading.Timer(START_S, self._process.kill)
        timer.start()
        said = ""
        for line in self._process.stdout:
            said += line
            if "Try it" in line:
                self._port = int(re.findall(r"http://[\w.]+:(\d+)", said)[0])
                break
        timer.cancel()
        if not self._port:
            raise RuntimeError(f"{self.setup.name}: no start:\n{(self._dir / 'log').read_text()[-3000:]}")

    def answers(self) -> dict[str, Any]:
        """Return the answer to every request, by its name."""
        found: dict[str, Any] = {}
        self._wait_for_load(0)
        for ask in self.setup.asks:
            if ask.name in found:
                raise RuntimeError(f"{self.setup.name}: two requests are called {ask.name!r}")
            found[ask.name] = None  # keeps the order of the table
            if ask.settles:
                self._join(found)
                self._wait_for_load(0)
            if ask.in_background:
                self._send_in_background(ask)
                if ask.load:
                    self._wait_for_load(ask.load)
            else:
                found[ask.name] = self._answer(ask)
        self._join(found)
        return found

    def close(self) -> None:
        """End the daemon in any state, and remove its folder."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        shutil.rmtree(self._dir, ignore_errors=True)

    def _send_in_background(self, ask: Ask) -> None:
        result: list[Any] = []
        thread = threading.Thread(target=lambda: result.append(self._answer(ask)), daemon=True)
        thread.start()
        self._background.append((ask, thread, result))

    def _join(self, found: dict[str, Any]) -> None:
        for ask, thread, result in self._background:
            thread.join(ANSWER_S)
            found[ask.name] = result[0] if result else "no answer"
        self._background.clear()

    def _answer(self, ask: Ask) -> dict[str, Any]:
        places = {str(self._dir): "<dir>", str(self._tree): "<tree>", f":{self._port}": ":<port>"}
        varying = Varying(places, hides_costs=self.setup.name == "pressed")
        if ask.raw:
            return {"raw": varying.text(_without_dates(self._raw(ask.raw)))}
        try:
            status, headers, body = self._exchange(ask)
        except (OSError, http.client.HTTPException) as error:
            return {"failed": type(error).__name__}
        kind = {name.lower(): value for name, value in headers}.get("content-type", "")
        if status == 429:  # the value of Retry-After depends on the current speed
            headers = [(name, "<seconds>" if name.lower() == "retry-after" else value) for name, value in headers]
        answer = {"status": status, "headers": varying.headers(headers), **body_form(body, kind, varying)}
        if ask.ending_only and "events" in answer:
            answer["events"] = ending(answer["events"])
        if ask.exact:
            answer["raw"] = exact(body, varying)
        return answer

    def _exchange(self, ask: Ask) -> tuple[int, list[tuple[str, str]], bytes]:
        body = ask.body if isinstance(ask.body, bytes | None) else json.dumps(ask.body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.request(ask.method, ask.path, body, dict(ask.headers))
            reply = connection.getresponse()
            return reply.status, reply.getheaders(), reply.read()

    def _raw(self, data: bytes) -> str:
        with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
            connection.sendall(data)
            received = b""
            with contextlib.suppress(OSError):
                while chunk := connection.recv(65536):
                    received += chunk
        return received.decode("utf-8", "backslashreplace")

    def _wait_for_load(self, load: int) -> None:
        """Wait until this number of requests is running or waiting, and has not changed since the last check."""
        deadline, seen = time.monotonic() + SETTLE_S, None
        while time.monotonic() < deadline:
            status, _, body = self._exchange(Ask("", "GET", "/v1/loads", headers=self.setup.headers))
            if status != 200:
                return
            shown = json.loads(body)["loads"][0]
            shown.pop("gen_throughput")
            reached = shown["num_running_reqs"] + shown["num_waiting_reqs"] == load
            if reached and shown["max_total_num_tokens"] and (load or shown == seen):
                return
            seen = shown
            time.sleep(0.05 if load else 0.3)
        print(f"{self.setup.name}: the load did not become {load}", file=sys.stderr)


def ending(events: list[Any]) -> list[Any]:
    """Return the last event and its kind, without the text so far."""
    last = events[-1:]
    for event in last:
        if isinstance(event["data"], dict) and "meta_info" in event["data"]:
            event["data"] |= {"text": "<text>", "output_ids": "<ids>"}
            event["data"]["meta_info"] |= {"completion_tokens": "<count>"}
    return last


def exact(body: bytes, varying: Varying) -> str:
    """Return the exact text of a stream, except for the parts that always differ."""
    text = varying.text(body.decode())
    return re.sub(r'"(created|created_at|completed_at|e2e_latency|queue_ms)":[0-9.e-]+', r'"\1":<time>', text)


def _without_dates(text: str) -> str:
    lines = text.split("\r\n")
    return "\r\n".join(
        "<varies>" if line.lower().startswith(("date:", "openai-processing-ms:")) else line for line in lines
    )
