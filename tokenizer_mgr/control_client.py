"""Calls to the scheduler that get one reply each: session and control requests. The module does not depend on HTTP."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from ebbtide.errors import Rejected
from ebbtide.messages import Reply, ToScheduler

from .engine_errors import NEVER_RETRIED, error_kind, send_error
from .manager import Outbox, Refusal, no_refusal

QUOTA_RETRY_S = 5.0  # Retry-After when a quota is exhausted


class ControlClient:
    """Sends control calls to the scheduler and assigns each reply to its call.

    All methods run on the event loop's thread.

    refusal: returns the error with which new work is refused, or None if the engine accepts work.
    """

    def __init__(self, outbox: Outbox, refusal: Refusal = no_refusal) -> None:
        self._outbox = outbox
        self._refusal = refusal
        self._open: dict[str, asyncio.Future[Reply]] = {}

    @property
    def num_open(self) -> int:
        """Number of calls that are waiting for a reply."""
        return len(self._open)

    async def ask(self, make: Callable[[str], ToScheduler]) -> Reply:
        """Send the message that ``make`` returns for a new call id, and wait for the reply.

        Raises Rejected if the reply is an error, if the message cannot be sent, or if the engine ends without a reply.
        """
        call = secrets.token_hex(8)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open[call] = future
        try:
            if not self._outbox.send(make(call)):
                raise send_error(self._refusal())
            reply = await future
        finally:
            del self._open[call]
        if reply.status >= 400:
            should_retry = False if reply.status in NEVER_RETRIED else None
            kind = error_kind(reply.status)
            raise Rejected(
                reply.message,
                status=reply.status,
                kind=kind,
                code=reply.code,
                retry_after_s=QUOTA_RETRY_S if reply.status == 429 else None,
                should_retry=should_retry,
            )
        return reply

    def resolve(self, reply: Reply) -> None:
        """Complete the call that ``reply`` answers. Does nothing if the caller is no longer waiting."""
        future = self._open.get(reply.call)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail_all(self, error: Rejected) -> None:
        """Make every open call raise ``error``."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(error)
