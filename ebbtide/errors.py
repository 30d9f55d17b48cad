"""The exceptions that ebbtide raises.

EbbtideError
├── StartupError         the daemon cannot start; the message is one sentence for the operator
│   └── UsageError       a flag has an invalid value: the exit code is 2
├── Rejected             a request is rejected, with an HTTP status and OpenAI's error fields
├── GrammarError         a grammar cannot be compiled, or the output cannot continue within it
├── PlanError            the runner cannot execute a step plan: a bug in ebbtide
└── InvariantViolation   the page accounting is inconsistent: a bug in ebbtide
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class EbbtideError(Exception):
    """The base class of all exceptions that ebbtide raises deliberately."""


class StartupError(EbbtideError):
    """The daemon cannot start. The message is one sentence that tells the operator what to change.

    The message is one line of valid Unicode, even if it contains text from a damaged file: each run of white space
    is replaced by one space, and each surrogate by an escape sequence.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.encode("utf-8", "backslashreplace").decode().split()))


class UsageError(StartupError):
    """A flag has an invalid value. The message names the flag."""


class Rejected(EbbtideError):
    """A request is rejected. The attributes are the fields of the error response.

    Attributes:
        kind: ``type`` of OpenAI's error object.
        retry_after_s: value of the Retry-After header.
        should_retry: False sends ``x-should-retry: false``, which the official clients obey.
    """

    def __init__(  # noqa: PLR0913 (one per field of the response, keyword-only except the first)
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
    """A grammar cannot be compiled or is too costly, or a token is not allowed by it."""


class PlanError(EbbtideError):
    """A step plan reaches outside its row, its page table or the pool."""


class InvariantViolation(EbbtideError):
    """The page accounting is inconsistent. The message names the pages and their owners.

    Attributes:
        pages: pool name → page numbers that must not be used, even if their owner and the ledger agree about them now.
    """

    def __init__(self, message: str, *, pages: Mapping[str, Sequence[int]] | None = None) -> None:
        super().__init__(message)
        self.pages = pages or {}
