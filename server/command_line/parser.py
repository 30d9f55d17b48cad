"""The parser of ``ebbtide`` and its subcommands.

The flags of a command, and the modules that they need, are loaded only if this command is used, so that other commands
start faster.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any, NoReturn

from ebbtide import __version__
from ebbtide.config import (
    AccessConfig,
    EncoderConfig,
    LimitsConfig,
    LogConfig,
    RunnerConfig,
    SchedulerConfig,
    ServerConfig,
    TracingConfig,
    WatchdogConfig,
)
from ebbtide.intervals import integer_in
from ebbtide.tokenization.model_files import DEFAULT_MODEL

from ..flags import add_flags
from .foreign_flags import MODEL, RENAMED, WITHOUT_EQUIVALENT

SECTIONS = (
    *(ServerConfig, AccessConfig, LimitsConfig, RunnerConfig, EncoderConfig),
    *(SchedulerConfig, WatchdogConfig, LogConfig, TracingConfig),
)
MODEL_HELP = (
    "a folder in Hugging Face format, a .gguf file, OWNER/NAME[:QUANTIZATION] of the Hub, smollm2 (the default), or sim"
)

# Subcommand → its help text and the module of ebbtide.commands that adds its flags, in the order of ``ebbtide --help``.
COMMANDS = {
    "serve": ("serve a model over HTTP", None),
    "run": ("chat with a model, or answer one prompt", "daemons.run"),
    "chat": ("chat with a running server", "chat"),
    "pull": ("download a model", None),
    "list": ("list the downloaded models", "models.listing"),
    "show": ("show the size of a model and what fits into this machine's memory", "models.show"),
    "rm": ("delete a downloaded model", "models.removal"),
    "ps": ("list your running servers", None),
    "doctor": ("check whether this machine meets ebbtide's requirements", "doctor.command"),
    "dump": ("show the state of a running server: batch, queue, memory, stacks", None),
    "bench": ("measure the speed of a running server", "bench"),
    "simulate": ("compare pool sizes and policies without a GPU", "simulate"),
    "build-kernels": ("compile the CPU kernels, for container images", "build_kernels"),
    "completion": ("print the completion script of a shell", None),
}
SHELLS = ("bash", "zsh", "fish")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error on one line, with the closest valid word, instead of the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the error to stderr and exit with code 2."""
        wrong = re.match(r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong is not None:
            message += did_you_mean(wrong[2], re.findall(r"[\w-]+", wrong[3]))
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def default_of(self, flag: str) -> Any:
        """Return the default value of a flag; "" if there is no such flag."""
        action = self._option_string_actions.get(flag)
        return "" if action is None else action.default

    @property
    def flags(self) -> list[str]:
        """All flags of the command."""
        return list(self._option_string_actions)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suffix for an error message that names the known word closest to ``word``; "" if none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def parse(words: list[str]) -> argparse.Namespace | None:
    """Parse the command line. If it is empty, print the help and return None. If it is invalid, exit with code 2."""
    parser, commands = build_parser(words[:1])
    if not words:
        parser.print_help()
        return None
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        command: Parser = commands[arguments.command]
        command.error(_unknown(unknown, command, arguments.command))
    _check_not_empty(words, commands[arguments.command])
    return arguments


def _check_not_empty(words: list[str], command: Parser) -> None:
    """Exit with code 2 if the value of a flag is an empty string and its default is not."""
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        flag, equals, value = word.partition("=")
        default = command.default_of(flag)
        if default != "" and (value == "" if equals else following == ""):
            command.error(f"argument {flag}: must not be empty")


def _unknown(unknown: list[str], command: Parser, name: str) -> str:
    foreign = [*RENAMED, *MODEL, *WITHOUT_EQUIVALENT] if name == "serve" else []
    flag = next((word for word in unknown if word.startswith("-")), None)
    if flag is None:
        return f"unrecognized arguments: {' '.join(unknown)}"
    flag = flag.partition("=")[0]
    hint = did_you_mean(flag, [*command.flags, *foreign])
    close = re.search(r"did you mean (\S+)\?", hint)
    if close is not None and close[1] in RENAMED and close[1] not in command.flags:
        hint = f"; did you mean {RENAMED[close[1]]}?"
    return f"unrecognized arguments: {flag}{hint}"


def build_parser(command: list[str], *, whole: bool = False) -> tuple[Parser, dict[str, Parser]]:
    """Return the main parser, and the parsers of the subcommands by name.

    command: the first argument, if any; only the flags of this subcommand are added.
    whole: True to add the flags of all subcommands.
    """
    parser = Parser(prog="ebbtide", description="An LLM serving daemon.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"ebbtide {__version__}")
    added = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands: dict[str, Parser] = {}
    for name, (text, module) in COMMANDS.items():
        commands[name] = added.add_parser(name, help=text, description=f"{text.capitalize()}.", allow_abbrev=False)
        if whole or command == [name]:
            if module is not None:
                import_module(f"ebbtide.commands.{module}").add_arguments(commands[name])
            else:
                _add_arguments(commands[name], name)
    return parser, commands


def _add_arguments(command: Parser, name: str) -> None:
    match name:
        case "serve":
            command.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
            for section in SECTIONS:
                add_flags(command, section)
        case "pull":
            text = f"{DEFAULT_MODEL}, or OWNER/NAME[:QUANTIZATION] of the Hub"
            command.add_argument("name", metavar="NAME", help=text)
        case "dump":
            text = "process id of the server, if several are running"
            command.add_argument("--pid", type=integer_in("[1, 4194304]"), metavar="PID", help=text)
        case "completion":
            command.add_argument("shell", choices=SHELLS, help="the shell")
