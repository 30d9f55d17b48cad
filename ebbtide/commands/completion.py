"""``ebbtide completion``: prints the completion script for a shell, which shtab generates from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

NAMES_OF_MODELS = "ebbtide list --names"  # the shell command that prints the model names for completion
MODEL_ARGUMENTS = ("model", "name")


def completion_script(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser], shell: str
) -> str:
    """Return the completion script for ``shell``. commands: command name → its parser."""
    import shtab

    for command in commands.values():
        for action in command._actions:
            if action.dest in MODEL_ARGUMENTS and not action.option_strings:
                action.complete = shtab.cmd(NAMES_OF_MODELS)  # type: ignore[attr-defined] # the attribute is shtab's
    script: str = shtab.complete(parser, shell=shell)
    return script
