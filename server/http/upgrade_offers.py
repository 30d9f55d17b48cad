"""Ignores offers to change the protocol of a connection, as RFC 9110 section 7.8 allows.

The parser treats an ``Upgrade`` header as accepted, so it skips the body and stops. The request is therefore parsed
again with a head that does not contain the offer.
"""

from __future__ import annotations

from collections.abc import Iterable

Headers = Iterable[tuple[bytes, bytes]]


def head_without_offer(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """Return the head of a request without its ``Upgrade`` headers and the ``Connection`` options that name them."""
    lines = [b"%s %s HTTP/%s" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            kept = [
                token for token in value.split(b",") if token.strip().lower() not in (b"upgrade", b"http2-settings")
            ]
            lines += [b"connection: " + b",".join(kept)] if kept else []
        elif name not in (b"upgrade", b"http2-settings"):
            lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])
