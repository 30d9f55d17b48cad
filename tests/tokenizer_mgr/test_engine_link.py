"""The engine process to which each message of the front process is sent."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from ebbtide.config import Addresses
from ebbtide.messages import AbortReq, EncodeReq, GenerateReq, SamplingParams, ToEncoder, ToScheduler
from ebbtide.runtime.channel import Receiver
from ebbtide.tokenizer_mgr.engine_link import EngineLink

GENERATE = GenerateReq(("a",), [1], SamplingParams(1))
ENCODE = EncodeReq("b", "text")
ABORT = AbortReq("b", "client")


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        yield Addresses(*(f"ipc://{Path(folder, name)}" for name in ("front", "scheduler", "detokenizer", "encoder")))


def heard(addresses: Addresses) -> tuple[list[ToScheduler], list[ToEncoder]]:
    """Send one message of each kind; returns what each process received."""
    context: zmq.Context[Any] = zmq.Context()
    scheduler: Receiver[ToScheduler] = Receiver(context, addresses.scheduler or "inproc://none", ToScheduler)
    encoder: Receiver[ToEncoder] = Receiver(context, addresses.encoder or "inproc://no", ToEncoder)
    link = EngineLink(addresses)
    assert all(link.send(message) for message in (GENERATE, ENCODE, ABORT))
    found: tuple[list[ToScheduler], list[ToEncoder]] = [], []
    expected = (2 if addresses.scheduler else 0), (2 if addresses.encoder else 0)
    while len(found[0]) < expected[0]:
        found[0].extend(scheduler.drain(20))
    while len(found[1]) < expected[1]:
        found[1].extend(encoder.drain(20))
    link.disconnect()
    assert not link.send(ABORT)
    link.close()
    scheduler.close()
    encoder.close()
    context.term()
    return found


def test_an_abort_goes_to_both_processes_and_other_messages_to_one(addresses: Addresses) -> None:
    assert heard(addresses) == ([GENERATE, ABORT], [ENCODE, ABORT])


def test_without_an_encoder_everything_goes_to_the_scheduler(addresses: Addresses) -> None:
    assert heard(replace(addresses, encoder=""))[0] == [GENERATE, ABORT]


def test_without_a_chat_model_nothing_waits_for_a_scheduler(addresses: Addresses) -> None:
    assert heard(replace(addresses, scheduler="", detokenizer=""))[1] == [ENCODE, ABORT]
