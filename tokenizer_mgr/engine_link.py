"""The sockets between the front process and the processes of the engine."""

from __future__ import annotations

import zmq
import zmq.asyncio

from ebbtide.config import Addresses
from ebbtide.messages import AbortReq, EncodeReq, ToEncoder, ToEngine, ToFront, ToScheduler
from ebbtide.runtime.channel import AsyncReceiver, Sender


class EngineLink:
    """Holds the sockets to one engine at a time.

    Each engine has its own addresses, so no message for one engine reaches a later engine.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._contexts = (zmq.Context(), zmq.asyncio.Context())
        self._connected = True
        self._open(addresses)

    def send(self, message: ToEngine) -> bool:
        """Queue a message without blocking. Returns False if the message was not queued.

        An abort is sent to every process that handles requests; a process that does not know the id ignores it.
        """
        if not self._connected:
            return False
        sent = True
        if self._encoder is not None and isinstance(message, EncodeReq | AbortReq):
            sent = self._encoder.send(message)
        if self._scheduler is not None and not isinstance(message, EncodeReq):
            sent = self._scheduler.send(message) and sent
        return sent

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
        self._close()
        self._open(addresses)
        self._connected = True

    def close(self) -> None:
        """Close the sockets."""
        self._close()
        for context in self._contexts:
            context.term()

    def _close(self) -> None:
        for sender in (self._scheduler, self._encoder):
            if sender is not None:
                sender.close()
        self._inbox.close()

    def _open(self, addresses: Addresses) -> None:
        context = self._contexts[0]
        self._scheduler: Sender[ToScheduler] | None = None
        self._encoder: Sender[ToEncoder] | None = None
        if addresses.scheduler:
            self._scheduler = Sender(context, addresses.scheduler)
        if addresses.encoder:
            self._encoder = Sender(context, addresses.encoder)
        self._inbox: AsyncReceiver[ToFront] = AsyncReceiver(self._contexts[1], addresses.front, ToFront)
