"""A daemon for the benchmarks in this folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

START_S = 300.0


class Daemon:
    """``ebbtide serve`` on a free port, with further flags."""

    def __init__(self, *flags: str, model: str = "smollm2") -> None:
        command = [sys.executable, "-m", "ebbtide.server.cli", "serve", model, "--port", "0", *flags]
        self._model = model
        self._log = tempfile.NamedTemporaryFile("r", suffix=".log")  # noqa: SIM115 (closed with the daemon)
        output = open(self._log.name, "w")  # noqa: SIM115 (the child's own from here on)
        self._process = subprocess.Popen(command, stdout=output, stderr=output)
        output.close()
        self.url = self._wait_for_url()

    def close(self) -> None:
        """Shut it down."""
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def _wait_for_url(self) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for line in Path(self._log.name).read_text().splitlines():
                if f"serves {self._model} on " in line:
                    return line.split(" on ")[1].strip()
            time.sleep(0.2)
        raise TimeoutError(Path(self._log.name).read_text())
