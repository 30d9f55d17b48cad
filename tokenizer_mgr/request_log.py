"""Writes one log line per request at its end. Prompts and answers are never logged."""

from __future__ import annotations

import logging
from collections.abc import Callable

from .response_stream import ResponseStream

log = logging.getLogger(__name__)

CLIENT_LEFT = 499  # the logged status if the client closed the connection before the response was complete


class RequestLog:
    """Logs requests.

    clock: returns the time in seconds; the clock of ``ResponseStream.received_s``.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def ended(self, stream: ResponseStream) -> None:
        """Log a request that has ended for any reason.

        The numbers of tokens and retractions are sums over its choices.
        """
        facts = stream.facts
        first = "-" if facts.first_token_s is None else f"{facts.first_token_s - stream.received_s:.3f} s"
        status = stream.error.status if stream.error is not None else 200 if stream.has_outcome else CLIENT_LEFT
        finishes = ",".join(sorted(set(facts.finishes.values()))) or "-"
        log.info(
            "request %s (%s): prompt %d, cached %d, output %d tokens; first token %s, total %.3f s; "
            "%d retractions; finish %s, status %d",
            stream.client_id or stream.rids[0],
            stream.rids[0],
            sum(facts.prompt_tokens.values()),
            sum(facts.cached_tokens.values()),
            sum(facts.output_tokens.values()),
            first,
            self._clock() - stream.received_s,
            sum(facts.retractions.values()),
            finishes if stream.error is None else stream.error.code or "error",
            status,
            extra={"rid": stream.client_id or stream.rids[0]},
        )
