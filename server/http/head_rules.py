"""Checks the head of a request against those rules of RFC 9110 and RFC 9112 that the HTTP parser does not check.

A request is refused if two recipients could disagree on its framing, its host or the content type of its body.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ebbtide.errors import Rejected

from .wire_refusal import not_http, unknown_transfer_coding

# RFC 9112 section 3.2 and RFC 3986 section 3.2.2: a name or address, in lower case, and a port; both may be empty.
HOST = re.compile(rb"(?:\[[0-9a-z._~:!$&'()*+,;=%-]+\]|(?:[0-9a-z._~!$&'()*+,;=-]|%[0-9a-f]{2})*)(?::[0-9]*)?")
Headers = Sequence[tuple[bytes, bytes]]


def check_head(version: str, headers: Headers) -> Rejected | None:
    """Return an error if the head breaks a rule, else None.

    headers: the header names must be in lower case.
    """
    codings = _values(headers, b"transfer-encoding")
    if wrong := _wrong_host(_values(headers, b"host"), version):
        return not_http(wrong)
    if codings and version < "1.1":
        return not_http(f"HTTP/{version} has no Transfer-Encoding.")  # RFC 9112 section 6.1
    if codings and codings != [b"chunked"]:
        return unknown_transfer_coding()
    if len(set(_values(headers, b"content-type"))) > 1:
        return not_http("It has Content-Type headers with different values.")
    return None


def _wrong_host(hosts: list[bytes], version: str) -> str:
    """Return an error message if the Host headers of a request are invalid, else ""."""
    if len(hosts) > 1:
        return "It has more than one Host header."
    if not hosts and version >= "1.1":
        return "It has no Host header."
    if hosts and HOST.fullmatch(hosts[0]) is None:
        return "Its Host header is not the name or address of a host."
    return ""


def _values(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value.strip().lower() for name, value in headers if name == wanted]
