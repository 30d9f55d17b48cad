"""The command line ``ebbtide``. Each subcommand is imported only when it is used."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from ebbtide import __version__
from ebbtide.config import (
    AccessConfig,
    EncoderConfig,
    LimitsConfig,
    LogConfig,
    RunnerConfig,
    SchedulerConfig,
    ServeConfig,
    ServerConfig,
    WatchdogConfig,
)
from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import DEFAULT_MODEL, smollm2_path

from .flags import add_flags, section_from
from .http.api_keys import masked, with_all_keys

log = logging.getLogger(__name__)

SECTIONS = (
    *(ServerConfig, AccessConfig, LimitsConfig, RunnerConfig, EncoderConfig),
    *(SchedulerConfig, WatchdogConfig, LogConfig),
)
INTERRUPTED = 130
BROKEN_PIPE = 141


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error in one line instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. A StartupError is printed to stderr in one line."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser(words[:1]).parse_args(words)
    _hide_secrets(words)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except StartupError as error:
        log.debug("%s cannot start", arguments.command, exc_info=True)
        print(
            "ebbtide:", " ".join(str(error).split()), file=sys.stderr
        )  # one line, even if the message of a library has several
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (such as `| head`) closed the pipe; the interpreter must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "serve":
            return _serve(arguments)
        case "pull":
            from ebbtide.commands.pull import run as pull

            return pull(arguments.name)
        case "dump":
            from ebbtide.commands.dump import dump

            return dump(arguments.pid)
        case command:
            module = import_module(f"ebbtide.commands.{command.replace('-', '_')}")
            code: int = module.run(arguments)
            return code


def _hide_secrets(words: list[str]) -> None:
    """Remove secrets from the process title, which every user can read with ``ps``."""
    title = masked(words)
    if title is not None:
        from setproctitle import setproctitle

        setproctitle(f"ebbtide {title}")


def _serve(arguments: argparse.Namespace) -> int:
    encoder = section_from(arguments, EncoderConfig)
    config = ServeConfig(
        model=arguments.model or ("" if encoder.embedding_model else DEFAULT_MODEL),
        encoder=encoder,
        server=section_from(arguments, ServerConfig),
        scheduler=section_from(arguments, SchedulerConfig),
        runner=section_from(arguments, RunnerConfig),
        log=section_from(arguments, LogConfig),
        watchdog=section_from(arguments, WatchdogConfig),
        limits=section_from(arguments, LimitsConfig),
        access=with_all_keys(section_from(arguments, AccessConfig), os.environ),
    )
    if config.model == DEFAULT_MODEL and not smollm2_path().is_file():
        from ebbtide.commands.pull import pull

        pull(DEFAULT_MODEL)
    from .daemon.launch import launch

    return launch(config)


def _parser(command: list[str]) -> argparse.ArgumentParser:
    """Build the parser.

    The flags of chat, bench and simulate are added only if ``command``, the first argument, is that subcommand.
    """
    parser = _Parser(prog="ebbtide", description="An LLM serving daemon.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"ebbtide {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="serve a model over HTTP", allow_abbrev=False)
    serve.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a folder in Hugging Face format, a .gguf file, OWNER/NAME[:QUANTIZATION] of the Hub, "
        "smollm2 (the default), or sim",
    )
    for section in SECTIONS:
        add_flags(serve, section)

    pull = commands.add_parser("pull", help="download a model", allow_abbrev=False)
    pull.add_argument("name", metavar="NAME", help=f"{DEFAULT_MODEL}, or OWNER/NAME[:QUANTIZATION] of the Hub")

    dump = commands.add_parser("dump", help="show the state of a running server: batch, queue, memory, stacks")
    dump.add_argument("--pid", type=int, metavar="PID", help="process id of the server, if several are running")

    chat = commands.add_parser("chat", help="chat with a running server", allow_abbrev=False)
    if command == ["chat"]:
        from ebbtide.commands.chat import add_arguments as add_chat_arguments

        add_chat_arguments(chat)
    bench = commands.add_parser("bench", help="measure the speed of a running server", allow_abbrev=False)
    if command == ["bench"]:
        from ebbtide.commands.bench import add_arguments

        add_arguments(bench)
    simulate = commands.add_parser(
        "simulate", help="compare pool sizes and policies without a device", allow_abbrev=False
    )
    if command == ["simulate"]:
        from ebbtide.commands.simulate import add_arguments as add_simulate_arguments

        add_simulate_arguments(simulate)
    build = commands.add_parser("build-kernels", help="compile the CPU kernels, for images", allow_abbrev=False)
    if command == ["build-kernels"]:
        from ebbtide.commands.build_kernels import add_arguments as add_build_arguments

        add_build_arguments(build)
    return parser


if __name__ == "__main__":
    sys.exit(main())
