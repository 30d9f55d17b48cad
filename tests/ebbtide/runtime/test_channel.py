import asyncio
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
import zmq.asyncio

from ebbtide.messages import AbortReq, FinishReq, GenerateReq, Heartbeat, SamplingParams, ToFront, ToScheduler
from ebbtide.runtime.channel import SEND_QUEUE, AsyncReceiver, Receiver, Sender


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as directory:
        yield f"ipc://{directory}/inbox"


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    with zmq.Context() as context:
        yield context


def test_messages_of_every_kind_arrive_in_order_and_equal(context: zmq.Context[Any], address: str) -> None:
    sent: list[ToScheduler] = [
        GenerateReq(("a", "b"), [1, 2, 3], SamplingParams(max_tokens=5, logit_bias={7: -1.5}, stop_token_ids=(4,))),
        FinishReq("a", 3),
        AbortReq("b", "client"),
    ]
    sender: Sender[ToScheduler] = Sender(context, address)  # created first: a sender need not wait for its receiver
    assert all(sender.send(message) for message in sent)
    receiver: Receiver[ToScheduler] = Receiver(context, address, ToScheduler)
    received: list[ToScheduler] = []
    while len(received) < len(sent):
        received += receiver.drain(5.0)
    assert received == sent
    assert receiver.handled == 3
    assert receiver.drain() == []
    sender.close()
    receiver.close()


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xff\x00", b"\x80\x04cos\nsystem\n(S'true'\ntR.", b"\x93\xa7Unknown\x01\x02", b"\x91" * 100_000],
)
def test_an_invalid_frame_is_dropped_and_counted(context: zmq.Context[Any], address: str, frame: bytes) -> None:
    receiver: Receiver[ToFront] = Receiver(context, address, ToFront)
    stranger = context.socket(zmq.PUSH)
    stranger.connect(address)
    stranger.send(frame)
    sender: Sender[ToFront] = Sender(context, address)
    while receiver.bad_frames == 0:
        assert receiver.drain(5.0) == []
    sender.send(Heartbeat("scheduler", 1))
    assert receiver.drain(5.0) == [Heartbeat("scheduler", 1)]
    for socket in (stranger, sender, receiver):
        socket.close()


def test_send_never_blocks_and_returns_false_when_the_queue_is_full(context: zmq.Context[Any], address: str) -> None:
    sender: Sender[ToFront] = Sender(context, address)
    taken = 0
    while sender.send(Heartbeat("scheduler", taken)):
        taken += 1
    assert taken == SEND_QUEUE
    receiver: Receiver[ToFront] = Receiver(context, address, ToFront)
    received: list[ToFront] = []
    while len(received) < taken:
        received += receiver.drain(5.0)
    assert received == [Heartbeat("scheduler", number) for number in range(taken)]
    sender.close()
    receiver.close()


def test_an_asyncio_receiver_skips_invalid_frames(address: str) -> None:
    async def receive() -> ToFront:
        with zmq.asyncio.Context() as loop_context, zmq.Context() as context:
            receiver: AsyncReceiver[ToFront] = AsyncReceiver(loop_context, address, ToFront)
            sender: Sender[ToFront] = Sender(context, address)
            sender.send(FinishReq("not for the front", 1))  # type: ignore[arg-type]
            sender.send(Heartbeat("detokenizer", 2))
            message = await asyncio.wait_for(receiver.receive(), 10)
            assert (receiver.bad_frames, receiver.handled) == (1, 1)
            sender.close()
            receiver.close()
            return message

    assert asyncio.run(receive()) == Heartbeat("detokenizer", 2)
