import argparse
import shlex
from dataclasses import dataclass
from typing import Literal

import pytest

from ebbtide.config.options import option, option_list
from ebbtide.errors import StartupError
from ebbtide.server.flags import add_flags, section_from


@dataclass(frozen=True, slots=True)
class Harbour:
    """How a harbour is run.

    More on this later.
    """

    depth: float = option(2.5, "metres at 100 % low water", within="(0, 12]")
    berths: int | None = option(None, "ships (default: all)", metavar="SHIPS", within="[1, inf)")
    tide: Literal["ebb", "flood"] = option("ebb", "which way it runs")
    fish: str = option("cod", "what is caught", choices=("cod", "eel"))
    lit: bool = option(False, "lights at night", flag="--with-lights")
    pilots: tuple[str, ...] = option_list("who may steer", flag="--pilot", metavar="NAME")


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_flags(parser, Harbour)
    return parser


def read(parser: argparse.ArgumentParser, *words: str) -> Harbour:
    return section_from(parser.parse_args(words), Harbour)


def test_without_flags_the_section_has_its_defaults(parser: argparse.ArgumentParser) -> None:
    assert read(parser) == Harbour()


def test_every_kind_of_field_is_a_flag(parser: argparse.ArgumentParser) -> None:
    words = shlex.split("--depth 3 --berths 4 --tide flood --fish eel --with-lights --pilot ann --pilot bob")
    assert read(parser, *words) == Harbour(3.0, 4, "flood", "eel", True, ("ann", "bob"))
    assert read(parser, "--pilot", "eve").pilots == ("eve",)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--depth", "0"], "--depth must be in (0, 12], not 0.0."),
        (["--depth", "12.1"], "--depth must be in (0, 12], not 12.1."),
        (["--depth", "nan"], "--depth must be in (0, 12], not nan."),
        (["--berths", "0"], "--berths must be in [1, inf), not 0."),
    ],
)
def test_a_value_outside_its_interval_is_refused(
    parser: argparse.ArgumentParser, words: list[str], sentence: str
) -> None:
    with pytest.raises(StartupError) as refusal:
        read(parser, *words)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize("words", [("--tide", "spring"), ("--fish", "shark")])
def test_a_value_that_is_not_a_choice_is_refused(parser: argparse.ArgumentParser, words: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        read(parser, *words)


def test_help_shows_defaults_and_any_character(parser: argparse.ArgumentParser) -> None:
    text = " ".join(parser.format_help().split())
    assert "metres at 100 % low water (default: 2.5)" in text
    assert "ships (default: all) " in text
    assert "How a harbour is run:" in text
