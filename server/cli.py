"""The command line ``ebbtide``. Each subcommand is imported only when it is used."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from ebbtide.config import (
    AccessConfig,
    EncoderConfig,
    LimitsConfig,
    LogConfig,
    RunnerConfig,
    SchedulerConfig,
    ServeConfig,
    ServerConfig,
    TracingConfig,
    WatchdogConfig,
)
from ebbtide.errors import StartupError, UsageError
from ebbtide.tokenization.model_files import DEFAULT_MODEL, smollm2_path

from .command_line.foreign_flags import translate
from .command_line.parser import build_parser, parse
from .flags import section_from
from .http.api_keys import masked, with_all_keys

log = logging.getLogger(__name__)

WRONG_USE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

# Subcommand → the module of ebbtide.commands whose function ``run`` takes the parsed arguments.
MODULES = {
    "run": "daemons.run",
    "chat": "chat",
    "pull": "pull",
    "list": "models.listing",
    "show": "models.show",
    "rm": "models.removal",
    "ps": "daemons.ps",
    "doctor": "doctor.command",
    "dump": "dump",
    "bench": "bench",
    "simulate": "simulate",
    "build-kernels": "build_kernels",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. A StartupError is printed to stderr on one line."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["serve"]:
        translation = translate(words)
        words = translation.words
        for note in [*translation.notes, translation.refusal]:
            if note:
                print(f"ebbtide: {note}", file=sys.stderr)
        if translation.refusal:
            return WRONG_USE
    arguments = parse(words)
    if arguments is None:
        return 0
    _hide_secrets(words)
    return _guarded(arguments)


def _guarded(arguments: argparse.Namespace) -> int:
    try:
        code = _command(arguments.command)(arguments)
        sys.stdout.flush()
        return code
    except StartupError as error:
        log.debug("%s cannot start", arguments.command, exc_info=True)
        # A message that comes from a library may have several lines.
        print("ebbtide:", " ".join(str(error).split()), file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (such as `| head`) closed the pipe; the interpreter must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    if name == "serve":
        return _serve
    if name == "completion":
        return _completion
    run: Callable[[argparse.Namespace], int] = import_module(f"ebbtide.commands.{MODULES[name]}").run
    return run


def _hide_secrets(words: list[str]) -> None:
    """Remove secrets from the process title, which every user can read with ``ps``."""
    title = masked(words)
    if title is not None:
        from setproctitle import setproctitle

        setproctitle(f"ebbtide {title}")


def _completion(arguments: argparse.Namespace) -> int:
    from ebbtide.commands.completion import completion_script

    parser, commands = build_parser([], whole=True)
    print(completion_script(parser, commands, arguments.shell))
    return 0


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
        tracing=section_from(arguments, TracingConfig),
        access=with_all_keys(section_from(arguments, AccessConfig), os.environ),
    )
    if config.model == DEFAULT_MODEL and not smollm2_path().is_file():
        from ebbtide.commands.pull import pull

        pull(DEFAULT_MODEL)
    from .daemon.launch import launch

    return launch(config)


if __name__ == "__main__":
    sys.exit(main())
