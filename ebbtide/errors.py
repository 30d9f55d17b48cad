"""The three kinds of error, and nothing about who handles them.

EbbtideError
├── StartupError         the daemon cannot start: one sentence for the operator
├── Rejected             the client's fault or the server's refusal: an HTTP status and OpenAI's error fields
├── GrammarError         a grammar that cannot be compiled, or an answer that cannot go on within its grammar
├── PlanError            a step plan that the runner cannot carry out: our bug
└── InvariantViolation   the memory books do not balance: our bug
"""

from __future__ import annotations


class EbbtideError(Exception):
    """Base of everything ebbtide raises on purpose."""


class StartupError(EbbtideError):
    """The daemon cannot start. The message is one sentence that says what to change."""


class Rejected(EbbtideError):
    """A request is refused, with the answer that the client gets.

    ``kind`` is the ``type`` of OpenAI's error object. ``retry_after_s`` becomes the Retry-After header;
    ``should_retry`` False becomes ``x-should-retry: false``, which the official clients obey.
    """

    def __init__(  # noqa: PLR0913 (one per field of the answer, all but the first by name)
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry


class GrammarError(EbbtideError):
    """A grammar that cannot be compiled or has become too costly, or a token that it does not allow."""


class PlanError(EbbtideError):
    """A step plan reaches outside its row, its page table or the pool."""


class InvariantViolation(EbbtideError):
    """The memory books do not balance. The message names the pages and their holders.

    ``pages``: those on which nothing may be computed although their holder and the ledger agree about them now.
    """

    def __init__(self, message: str, *, pages: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.pages = pages
