"""Claude Code: it writes a file, edits it and runs a command."""

import json
import os
from pathlib import Path

from coding import run

for name in ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"):
    os.environ[name] = "sim"
folder = Path("work").resolve()
command = [
    "claude",
    "-p",
    "Make the file made.txt",
    "--allowedTools",
    "Bash Write Edit Read",
    "--output-format",
    "json",
]
answer = json.loads(run(command, folder))
assert answer["result"] == "Done: 42-made.", answer
assert answer["permission_denials"] == [], answer
assert (folder / "made.txt").read_text() == "ebb 👩‍👩‍👧\n"
