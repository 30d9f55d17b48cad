"""``ebbtide chat``: talk to a running server, on a session where it has one.

Only the terminal: lines in, text and notes out. Answers go to stdout, everything else to stderr. What needs a network
library is imported when it runs, so that other commands do not wait for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import sys
from typing import TYPE_CHECKING

from ..errors import StartupError

if TYPE_CHECKING:
    import aiohttp

    from .chat_client import ChatTurn, Conversation

HELP = """/new      forget the conversation and begin another one
/usage    tokens of the conversation, and how many of them were not computed again
/session  the session as the server sees it
/quit     end, as Ctrl-D does; Ctrl-C stops an answer and forgets its question"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``ebbtide chat``."""
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1", metavar="URL", help="the API, with its /v1")
    parser.add_argument(
        "--model", default="", metavar="NAME", help="model to ask for (the first that the server lists)"
    )
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    parser.add_argument("--system", metavar="TEXT", help="system message in front of the conversation")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: the rest of the context)")
    parser.add_argument("--temperature", type=float, metavar="T", help="sampling temperature (default: the server's)")
    parser.add_argument("--no-session", action="store_true", help="send the whole conversation each time")


def run(args: argparse.Namespace) -> int:
    """Talk until the input ends. 1 when the last question got no answer, else 0.

    Raises StartupError with one sentence when there is no server, or the input cannot be read.
    """
    with asyncio.Runner() as runner:
        conversation, http = runner.run(_connect(args))
        try:
            return _talk(runner, conversation)
        except KeyboardInterrupt:
            return 0  # the second one came while the first one was answered
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
    """Ctrl-C outside an answer empties the line; a second one ends."""
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
            _note("\nOnce more, or /quit, to end.")
    return 0 if answered else 1


def _line(prompt: str) -> str:
    """The next line. Raises EOFError, or StartupError for bytes that are no text."""
    try:
        return input(prompt).strip()
    except UnicodeDecodeError as error:
        raise StartupError(
            f"The input is not {error.encoding.upper()}: convert it, or set the locale to its encoding."
        ) from error


def _prompt() -> str:
    """What stands in front of a line: nothing where nobody types."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")  # the C locale would smuggle stray bytes into what is sent
    if not sys.stdin.isatty():
        return ""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (imported for what it does to input(): editing, and earlier lines)
    _note("/help lists what else can be said.")
    return "> "


def _ask(runner: asyncio.Runner, conversation: Conversation, question: str) -> bool:
    """Whether the question was answered; a stopped answer counts as one."""
    from .chat_client import Lost, Refused

    try:
        turn = runner.run(conversation.ask(question))
    except KeyboardInterrupt:
        _note("\nStopped: the question and its answer are forgotten.")
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
            _note("A new conversation.")
        case "/usage":
            _note(_usage(conversation.turns))
        case "/session":
            await _describe(conversation)
        case _:
            _note(HELP)


def _usage(turns: list[ChatTurn]) -> str:
    if not turns:
        return "Nothing was said yet."
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
        f" K/V kept for {seen['held_tokens']}; closes after {seen['timeout_s']:g} s of silence."
    )


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
