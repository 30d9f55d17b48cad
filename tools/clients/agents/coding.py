"""Runs a coding agent without a terminal and checks what it did."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

TASK_S = 200.0
URL = os.environ["EBBTIDE_URL"]


def run(command: list[str], folder: Path) -> str:
    """Return what the agent printed. Raises RuntimeError if it ended with an error."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TASK_S, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def codex(task: str, folder: Path, model: str = "sim") -> str:
    """Return the last message of Codex about ``task``, without approvals, sandbox and telemetry."""
    home = Path.home() / "codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(CODEX_CONFIG.format(model=model, url=URL))
    os.environ["CODEX_HOME"] = str(home)
    return run(["codex", "exec", "--skip-git-repo-check", task], folder).strip()


CODEX_CONFIG = """\
model = "{model}"
model_provider = "ebbtide"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.ebbtide]
name = "ebbtide"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
"""
