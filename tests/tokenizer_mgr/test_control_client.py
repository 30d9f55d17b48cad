"""Every call to the scheduler gets one reply or one error."""

from __future__ import annotations

import asyncio

import pytest

from ebbtide.errors import Rejected
from ebbtide.messages import ListSessionsReq, Reply, ToEngine
from ebbtide.tokenizer_mgr.control_client import ControlClient


class Outbox:
    def __init__(self, *, takes: bool = True) -> None:
        self.sent: list[ListSessionsReq] = []
        self.takes = takes

    def send(self, message: ToEngine) -> bool:
        assert isinstance(message, ListSessionsReq)
        self.sent.append(message)
        return self.takes


async def ask(calls: ControlClient, outbox: Outbox, answer: Reply | Rejected) -> Reply:
    asking = asyncio.create_task(calls.ask(ListSessionsReq))
    while not outbox.sent:
        await asyncio.sleep(0)
    if isinstance(answer, Rejected):
        calls.fail_all(answer)
    else:
        calls.resolve(Reply("somebody else's", 500))
        calls.resolve(Reply(outbox.sent[0].call, answer.status, answer.code, answer.message))
    return await asking


def test_a_call_gets_the_reply_that_carries_its_id() -> None:
    outbox = Outbox()
    assert asyncio.run(ask(ControlClient(outbox), outbox, Reply(""))).call == outbox.sent[0].call


def test_a_refusing_reply_becomes_the_error_it_names() -> None:
    outbox = Outbox()
    with pytest.raises(Rejected) as caught:
        asyncio.run(ask(ControlClient(outbox), outbox, Reply("", 409, "session_busy", "busy")))
    error = caught.value
    assert (error.status, error.code, error.kind, error.should_retry) == (409, "session_busy", "conflict_error", False)


def test_calls_that_wait_fail_with_the_engine() -> None:
    outbox = Outbox()
    with pytest.raises(Rejected, match="gone"):
        asyncio.run(ask(ControlClient(outbox), outbox, Rejected("gone", status=500)))


def test_a_call_that_cannot_be_sent_is_answered_with_503() -> None:
    with pytest.raises(Rejected) as caught:
        asyncio.run(ControlClient(Outbox(takes=False)).ask(ListSessionsReq))
    assert caught.value.status == 503
