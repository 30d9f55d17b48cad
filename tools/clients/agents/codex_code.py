"""Codex in code mode: tools come as an item of the input, and the model writes a program that calls them."""

from pathlib import Path

from coding import codex

assert codex("Run the code", Path("work").resolve(), "gpt-6.2-sol").endswith("Ran: 42-made.")
