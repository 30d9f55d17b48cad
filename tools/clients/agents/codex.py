"""Codex: a shell command, and a call of a function in a namespace."""

from pathlib import Path

from coding import codex

folder = Path("work").resolve()
assert codex("Make the file made.txt", folder).endswith("Done: 42-made.")
assert (folder / "made.txt").read_text() == "tide\n"
assert codex("Close the agent", folder).endswith("Closed.")
