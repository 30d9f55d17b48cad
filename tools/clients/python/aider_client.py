"""Aider: it edits a file with its own text format, without tools."""

import subprocess
import sys
from pathlib import Path

from trip import MODEL, V1, check

folder = Path("work").resolve()
folder.mkdir()
subprocess.run(["git", "init", "-q", folder], check=True)
(folder / "made.txt").write_text("tide\n")
program = Path(sys.executable).with_name("aider")
quiet = ["--no-check-update", "--no-show-model-warnings", "--analytics-disable", "--no-gitignore", "--no-auto-commits"]
where = ["--model", f"openai/{MODEL}", "--openai-api-base", V1, "--openai-api-key", "none"]
subprocess.run(
    [
        program,
        *where,
        *quiet,
        "--yes-always",
        "--no-stream",
        "--edit-format",
        "whole",
        "--message",
        "Edit the file.",
        "made.txt",
    ],
    cwd=folder,
    check=True,
    stdin=subprocess.DEVNULL,
)
check((folder / "made.txt").read_text(), "ebb 👩‍👩‍👧\n")
