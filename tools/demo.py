#!/usr/bin/env python3
"""Show memory pressure in the console: serve the simulated model with a small pool, and load it until interrupted.

`make demo` runs it. It needs no model and no GPU.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import urllib.request
from typing import Any

SERVE = (
    "--sim-step-ms",
    "15",
    "--retraction-risk",
    "0.9",  # with the default, this load has almost no retractions
    "--max-total-tokens",
    "6144",
    "--max-running-requests",
    "32",
    "--enable-streaming-session",
)
LOAD = ("--concurrency", "24", "--num-requests", "200", "--prompt-len", "16:160", "--output-len", "64:512")
SESSIONS = 3
START_S = 120.0


def call(url: str, body: dict[str, Any] | None = None) -> None:
    """Send a GET request, or a POST request with a JSON body. Raises OSError if the answer is an error."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        reply.read()


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server accepts requests. Exits if the server has ended."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(server.returncode or 1)
        try:
            call(f"{url}/ready")
            return
        except OSError:
            time.sleep(0.2)
    sys.exit("The server did not become ready.")


def open_sessions(url: str) -> None:
    """Open sessions with one turn each, so that the console's list of sessions is not empty."""
    for number in range(1, SESSIONS + 1):
        name = f"demo-{number}"
        call(f"{url}/v1/sessions", {"session_id": name})
        turn = {"session_id": name, "max_tokens": 40, "messages": [{"role": "user", "content": "What is a tide?"}]}
        call(f"{url}/v1/chat/completions", turn)


def main() -> int:
    """Run the demo until it is interrupted. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="8000")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # ends the server too
    url = f"http://{arguments.host}:{arguments.port}"
    ebbtide = (sys.executable, "-m", "ebbtide.server.cli")
    server = subprocess.Popen([*ebbtide, "serve", "sim", "--host", arguments.host, "--port", arguments.port, *SERVE])
    try:
        wait_until_ready(url, server)
        open_sessions(url)
        print(f"\nOpen the console: {url}/    (Ctrl-C ends the demo)\n", flush=True)
        seed = 0
        while server.poll() is None:
            bench = [*ebbtide, "bench", "--base-url", f"{url}/v1", "--seed", str(seed), *LOAD]
            subprocess.run(bench, check=True, stdout=subprocess.DEVNULL)
            seed += 1
        return server.returncode
    except (KeyboardInterrupt, subprocess.CalledProcessError):
        return 0
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
