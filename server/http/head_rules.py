"""Rules of RFC 9110 and RFC 9112 for the head of a request that the parser does not check.

A request on whose framing, host or body type two recipients could disagree is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide.errors import Rejected

from .wire_refusal import not_http, unknown_transfer_coding

Headers = Sequence[tuple[bytes, bytes]]


def check_head(version: str, headers: Headers) -> Rejected | None:
    """Return the error for a head that breaks a rule; None if it breaks none.

    headers: names in lower case.
    """
    hosts, codings = _values(headers, b"host"), _values(headers, b"transfer-encoding")
    if len(hosts) > 1:
        return not_http("It has more than one Host header.")  # RFC 9112 section 3.2
    if not hosts and version >= "1.1":
        return not_http("It has no Host header.")
    if codings and version < "1.1":
        return not_http(f"HTTP/{version} has no Transfer-Encoding.")  # RFC 9112 section 6.1
    if codings and codings != [b"chunked"]:
        return unknown_transfer_coding()
    if len(set(_values(headers, b"content-type"))) > 1:
        return not_http("It has Content-Type headers with different values.")
    return None


def _values(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value.strip().lower() for name, value in headers if name == wanted]
