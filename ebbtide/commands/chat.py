"""``ebbtide chat``: talks to a running server, in a session if the server supports them.

This file handles the terminal only: it reads lines and prints text and notes. Answers go to stdout, everything else to
stderr. Modules that need a network library are imported only when the command runs, so that the other commands start
faster.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import sys
from typing import TYPE_CHECKING

from ..errors import StartupError
from .arguments import add_server, count, temperature

if TYPE_CHECKING:
    import aiohttp

    from .chat_client import ChatTurn, Conversation

HELP = """/new      start a new conversation
/usage    show how many tokens the conversation has and how many were reused
/session  show the state of the session on the server
/quit     quit, like Ctrl-D; Ctrl-C stops an answer and drops its question"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``ebbtide chat``."""
    add_server(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    max_tokens_help = "maximum number of output tokens per answer (default: the rest of the context)"
    parser.add_argument("--max-tokens", type=count, metavar="N", help=max_tokens_help)
    parser.add_argument(
        "--temperature", type=temperature, metavar="T", help="sampling temperature (default: the server's)"
    )
    parser.add_argument("--no-session", action="store_true", help="send the whole conversation with every question")


def run(args: argparse.Namespace) -> int:
    """Run ``ebbtide chat``."""
    return chat(args)


def answer_once(args: argparse.Namespace, prompt: str) -> int:
    """Print the answer to one prompt. Returns 1 if the prompt was not answered, else 0."""
    from .chat_client import Lost, Refused

    with asyncio.Runner() as runner:
        conversation, http = runner.run(_connect(args))
        try:
            runner.run(conversation.ask(prompt))
        except (Refused, Lost) as error:
            _note(str(error))
            return 1
        finally:
            _show("\n")
            runner.run(_disconnect(conversation, http))
    return 0


def chat(args: argparse.Namespace) -> int:
    """Chat until the input ends. Returns 1 if the last question was not answered, else 0.

    Raises StartupError if the server cannot be reached or the input cannot be read.
    """
    with asyncio.Runner() as runner:
        conversation, http = runner.run(_connect(args))
        try:
            return _talk(runner, conversation)
        except KeyboardInterrupt:
            return 0  # the user pressed Ctrl-C again while the first Ctrl-C was handled
        finally:
            runner.run(_disconnect(conversation, http))


async def _connect(args: argparse.Namespace) -> tuple[Conversation, aiohttp.ClientSession]:
    from .bench_load.client import first_model
    from .chat_client import Conversation, Settings, connect

    base_url = args.base_url.rstrip("/")
    http = connect(args.api_key)
    try:
        settings = Settings(
            base_url=base_url,
            model=args.model or await first_model(http, base_url),
            system=args.system,
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            wants_session=not args.no_session,
        )
    except BaseException:
        await http.close()
        raise
    return Conversation(http, settings, _show, _note), http


async def _disconnect(conversation: Conversation, http: aiohttp.ClientSession) -> None:
    await conversation.close()
    await http.close()


def _talk(runner: asyncio.Runner, conversation: Conversation) -> int:
    """Read and handle lines until the input ends. Ctrl-C outside an answer discards the line; a second Ctrl-C quits."""
    prompt = _prompt()
    answered, interrupted = True, False
    while True:
        try:
            line = _line(prompt)
            interrupted = False
            if line in ("/quit", "/exit"):
                break
            if line.startswith("/"):
                runner.run(_command(conversation, line))
            elif line:
                answered = _ask(runner, conversation, line)
        except EOFError:
            break
        except KeyboardInterrupt:
            if interrupted:
                break
            interrupted = True
            _note("\nPress Ctrl-C again or enter /quit to quit.")
    return 0 if answered else 1


def _line(prompt: str) -> str:
    """Read the next line. Raises EOFError at the end of the input, StartupError if the line cannot be decoded."""
    try:
        return input(prompt).strip()
    except UnicodeDecodeError as error:
        raise StartupError(
            f"The input is not {error.encoding.upper()}: convert it, or set the locale to its encoding."
        ) from error


def _prompt() -> str:
    """Prepare stdin, and return the prompt for input lines; "" if stdin is not a terminal."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")  # without this, the C locale would pass invalid bytes on to the server
    if not sys.stdin.isatty():
        return ""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives input() editing and history)
    _note("Enter /help for a list of commands.")
    return "> "


def _ask(runner: asyncio.Runner, conversation: Conversation, question: str) -> bool:
    """Ask a question. Returns True if it was answered or the user stopped the answer."""
    from .chat_client import Lost, Refused

    try:
        turn = runner.run(conversation.ask(question))
    except KeyboardInterrupt:
        _note("\nStopped; the question and its answer are dropped.")
        return True
    except (Refused, Lost) as error:
        _note(str(error))
        return False
    _show("\n")
    _note(_report(turn))
    return True


def _report(turn: ChatTurn) -> str:
    new = turn.prompt_tokens - turn.reused_tokens
    pace = f", {turn.output_tokens} tokens in {turn.total_s:.2f} s"
    cut = "; cut off by the token limit" if turn.finish_reason == "length" else ""
    return f"[{turn.reused_tokens} tokens reused + {new} new; first token after {turn.first_token_s:.2f} s{pace}{cut}]"


async def _command(conversation: Conversation, line: str) -> None:
    match line:
        case "/new":
            await conversation.start_anew()
            _note("Started a new conversation.")
        case "/usage":
            _note(_usage(conversation.turns))
        case "/session":
            await _describe(conversation)
        case _:
            _note(HELP)


def _usage(turns: list[ChatTurn]) -> str:
    if not turns:
        return "The conversation is empty."
    asked = sum(turn.prompt_tokens for turn in turns)
    reused = sum(turn.reused_tokens for turn in turns)
    context = turns[-1].prompt_tokens + turns[-1].output_tokens
    share = f"{reused} of {asked} prompt tokens were reused ({reused / max(asked, 1):.0%})"
    return f"{len(turns)} turns, {context} tokens in all; {share}."


async def _describe(conversation: Conversation) -> None:
    from .chat_client import Lost, Refused

    if conversation.session_id is None:
        _note("No session is open.")
        return
    try:
        seen = await conversation.describe()
    except (Refused, Lost) as error:
        _note(str(error))
        return
    _note(
        f"{seen['id']}: {seen['state']}, {seen['num_turns']} turns, {seen['num_tokens']} tokens,"
        f" ({seen['held_tokens']} of them in the KV cache); closes after {seen['timeout_s']:g} s without a turn."
    )


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
