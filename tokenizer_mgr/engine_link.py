"""The front's ends of the channels to the engine processes of the moment. Knows sockets, no processes."""

from __future__ import annotations

import zmq
import zmq.asyncio

from ebbtide.config import Addresses
from ebbtide.messages import ToFront, ToScheduler
from ebbtide.runtime.channel import AsyncReceiver, Sender


class EngineLink:
    """One engine after another; what belonged to the last one can reach neither the next one nor the front."""

    def __init__(self, addresses: Addresses) -> None:
        self._contexts = (zmq.Context(), zmq.asyncio.Context())
        self._whole = True
        self._open(addresses)

    def send(self, message: ToScheduler) -> bool:
        """Queue a message for the scheduler without waiting; False when it was not taken."""
        return self._whole and self._outbox.send(message)

    async def receive(self) -> ToFront:
        """The next message from one of the children."""
        return await self._inbox.receive()

    def cut(self) -> None:
        """The engine is gone: nothing more is sent to it."""
        self._whole = False

    def reconnect(self, addresses: Addresses) -> None:
        """A new engine is there, at addresses that no other one has had. Nobody may be in ``receive``."""
        self._outbox.close()
        self._inbox.close()
        self._open(addresses)
        self._whole = True

    def close(self) -> None:
        """Close the sockets."""
        self._outbox.close()
        self._inbox.close()
        for context in self._contexts:
            context.term()

    def _open(self, addresses: Addresses) -> None:
        self._outbox: Sender[ToScheduler] = Sender(self._contexts[0], addresses.scheduler)
        self._inbox: AsyncReceiver[ToFront] = AsyncReceiver(self._contexts[1], addresses.front, ToFront)
