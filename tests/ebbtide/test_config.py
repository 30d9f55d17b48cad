import dataclasses
import typing

import msgspec
import pytest

from ebbtide import config
from ebbtide.config import Addresses, DetokenizerSection, SchedulerSection, ServeConfig
from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.vocabulary import sim_vocabulary

FLAGGED = (
    *(config.ServerConfig, config.SchedulerConfig, config.RunnerConfig, config.LogConfig),
    *(config.AccessConfig, config.LimitsConfig, config.EncoderConfig, config.WatchdogConfig),
    config.TracingConfig,
)
ADDRESSES = Addresses("ipc:///f", "ipc:///s", "ipc:///d")


def test_sections_are_unchanged_after_they_are_sent_to_a_child() -> None:
    whole = ServeConfig()
    files = ModelFiles("m", "/models/m", "m.gguf")
    for section in (
        SchedulerSection(files, whole.scheduler, whole.runner, whole.log, ADDRESSES),
        DetokenizerSection(sim_vocabulary(), whole.log, ADDRESSES),
    ):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(section), type=type(section)) == section


@pytest.mark.parametrize("section", FLAGGED)
def test_a_section_cannot_be_changed_after_it_was_built(section: type) -> None:
    built = section()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(built, dataclasses.fields(section)[0].name, None)


@pytest.mark.parametrize("section", FLAGGED)
def test_every_flag_says_what_it_does_and_has_a_default_within_its_interval(section: type) -> None:
    from argparse import ArgumentParser

    from ebbtide.server.flags import add_flags, section_from

    parser = ArgumentParser()
    add_flags(parser, section)
    assert section_from(parser.parse_args([]), section) == section()
    for field in dataclasses.fields(section):
        assert field.metadata["help"]


@pytest.mark.parametrize("section", FLAGGED)
def test_every_number_has_an_interval(section: type) -> None:
    kinds = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        if kinds[field.name] in (int, float, int | None, float | None):
            assert field.metadata["within"], field.name
            assert float(field.metadata["within"][1:-1].split(",")[1]) <= 2**40, field.name
