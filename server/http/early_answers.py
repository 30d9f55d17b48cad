"""Handles responses that end the connection before the whole request has arrived, such as 413 for a large body.

uvicorn would close such a connection at once. The unread input would then reset the connection, and the client might
lose the response.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class EarlyAnswers:
    """Wraps ``app`` for the single request of ``cycle``.

    Calls ``on_early_end`` just before the last part of a response that is complete before its request.
    """

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle, on_early_end: Callable[[], None]) -> None:
        self._app = app
        self._cycle = cycle
        self._on_early_end = on_early_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_keep(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last and self._cycle.more_body and not self._cycle.keep_alive:
                self._cycle.keep_alive = True
                self._on_early_end()
            await send(message)

        await self._app(scope, receive, send_and_keep)
