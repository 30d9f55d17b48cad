"""Every flag of every command with extreme numbers is either accepted, or refused with one sentence and exit code 2."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.errors import UsageError
from ebbtide.server.command_line.parser import COMMANDS, SECTIONS, build_parser, parse
from ebbtide.server.flags import section_from

VALUES = ("nan", "inf", "-inf", "-1", "0", "1e300", "-1e300", str(2**63), str(2**64), "9" * 5000, "1:2:3", "x", "")
POSITIONALS = {"run": ["sim"], "pull": ["x"], "show": ["x"], "rm": ["x"], "completion": ["bash"]}
TEXTS = (str, Path, None)


def flags() -> Iterator[tuple[str, argparse.Action]]:
    for name, command in build_parser([], whole=True)[1].items():
        for flag in command.flags:
            action = command._option_string_actions[flag]
            if action.nargs != 0:
                yield name, action


FLAGS = [pytest.param(name, action, id=f"{name} {action.option_strings[-1]}") for name, action in flags()]


def test_every_command_is_tested() -> None:
    assert {name for name, _ in flags()} >= {"serve", "run", "chat", "bench", "simulate", "dump", "build-kernels"}
    assert set(build_parser([], whole=True)[1]) == set(COMMANDS)


def parsed(words: list[str]) -> argparse.Namespace:
    """Parse the words as the command line does. Raises SystemExit or UsageError."""
    arguments = parse(words)
    assert arguments is not None
    for section in SECTIONS if words[0] == "serve" else ():
        section_from(arguments, section)
    return arguments


@pytest.mark.parametrize(("name", "action"), FLAGS)
def test_a_value_is_useful_or_refused_in_one_sentence(
    name: str, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = action.option_strings[-1]
    for value in ("",) if action.type in TEXTS or action.choices else VALUES:
        code: int | str | None = 2
        try:
            arguments = parsed([name, *POSITIONALS.get(name, []), f"{flag}={value}"])
        except UsageError as error:
            sentence = str(error)
        except SystemExit as error:
            code = error.code
            sentence = capsys.readouterr().err
        else:
            assert value != "" or action.default == ""
            given = getattr(arguments, action.dest)
            for one in given if isinstance(given, list) else [given]:
                assert one == "" or _is_useful(one)
            continue
        assert code == 2
        assert flag in sentence
        assert sentence.count("\n") <= 1
        assert len(sentence) < 6000 if value == "9" * 5000 else len(sentence) < 400


def _is_useful(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and -(2**63) <= value < 2**63
