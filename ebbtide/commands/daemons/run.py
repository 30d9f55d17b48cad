"""``ebbtide run``: chats with a model or answers one prompt. Starts a server if no running server serves the model."""

from __future__ import annotations

import argparse
import os
import sys

from ...errors import StartupError
from ...intervals import integer_in
from ..arguments import count, temperature
from ..chat import answer_once, chat
from .own_daemon import server_for

KEY_VARIABLE = "EBBTIDE_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``ebbtide run``."""
    parser.add_argument("model", metavar="MODEL", help="model, as for ebbtide serve, on a running server if one has it")
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="a prompt to answer, instead of a chat; piped input is appended"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--max-tokens", type=count, metavar="N", help="maximum output tokens per answer")
    parser.add_argument(
        "--temperature", type=temperature, metavar="T", help="sampling temperature (default: the server's)"
    )
    parser.add_argument(
        "--context-length", type=integer_in("[2, 2147483647]"), metavar="TOKENS", help="context length of a new server"
    )
    parser.add_argument("--api-key", metavar="KEY", help=f"API key of a running server (default: {KEY_VARIABLE})")


def run(arguments: argparse.Namespace) -> int:
    """Chat, or answer one prompt. Returns 1 if the last question was not answered, else 0."""
    prompt = _prompt(arguments.prompt)
    flags = ["--context-length", str(arguments.context_length)] if arguments.context_length else []
    with server_for(arguments.model, flags) as server:
        key = arguments.api_key or os.environ.get(KEY_VARIABLE)
        if server.needs_key and not key:
            raise StartupError(f"The server at {server.url} needs an API key: set {KEY_VARIABLE} or --api-key.")
        settings = vars(arguments) | {
            "base_url": f"{server.url}/v1",
            "model": server.model_name,
            "api_key": key if server.needs_key else None,
            "no_session": prompt is not None,
        }
        target = argparse.Namespace(**settings)
        return chat(target) if prompt is None else answer_once(target, prompt)


def _prompt(given: str | None) -> str | None:
    """Return the prompt followed by the piped input; None for a chat in the terminal."""
    if sys.stdin.isatty():
        return given
    try:
        piped = sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise StartupError(f"The input is not {error.encoding.upper()}: convert it, or set the locale.") from error
    prompt = "\n\n".join(part for part in (given, piped) if part)
    if not prompt:
        raise StartupError("There is no prompt: give one as an argument or as input.")
    return prompt
