"""The front's sockets to the scheduler and the detokenizer."""

from __future__ import annotations

import zmq
import zmq.asyncio

from ebbtide.config import Addresses
from ebbtide.messages import ToFront, ToScheduler
from ebbtide.runtime.channel import AsyncReceiver, Sender


class EngineLink:
    """Holds the sockets to one engine at a time.

    Each engine has its own addresses, so no message for one engine reaches a later engine.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._contexts = (zmq.Context(), zmq.asyncio.Context())
        self._connected = True
        self._open(addresses)

    def send(self, message: ToScheduler) -> bool:
        """Queue a message for the scheduler without blocking. Returns False if the message was not queued."""
        return self._connected and self._outbox.send(message)

    async def receive(self) -> ToFront:
        """Return the next message from the engine."""
        return await self._inbox.receive()

    def disconnect(self) -> None:
        """Stop sending, because the engine has ended."""
        self._connected = False

    def reconnect(self, addresses: Addresses) -> None:
        """Connect to a new engine, whose addresses must be new.

        Do not call it while ``receive`` is in progress.
        """
        self._outbox.close()
        self._inbox.close()
        self._open(addresses)
        self._connected = True

    def close(self) -> None:
        """Close the sockets."""
        self._outbox.close()
        self._inbox.close()
        for context in self._contexts:
            context.term()

    def _open(self, addresses: Addresses) -> None:
        self._outbox: Sender[ToScheduler] = Sender(self._contexts[0], addresses.scheduler)
        self._inbox: AsyncReceiver[ToFront] = AsyncReceiver(self._contexts[1], addresses.front, ToFront)
