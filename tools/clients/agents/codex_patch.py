"""Codex with the tools that it offers to OpenAI's models: a custom tool (apply_patch), and a search for tools."""

from pathlib import Path

from coding import codex

folder = Path("work").resolve()
assert codex("Patch the file patched.txt", folder, "gpt-5.5").endswith("Patched.")
assert (folder / "patched.txt").read_text() == "größer 👩‍👩‍👧\n"
assert codex("Search for tools", folder, "gpt-5.5").endswith("Searched.")
