"""Ignores requests to upgrade a connection to another protocol, as RFC 9110 section 7.8 allows.

The parser assumes that the server accepts an ``Upgrade`` header, so it skips the body and stops. The request is
therefore parsed again, with a head that does not contain the header.
"""

from __future__ import annotations

from collections.abc import Iterable

Headers = Iterable[tuple[bytes, bytes]]


def head_without_offer(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """Return the head of a request without its upgrade headers and without the ``Connection`` options for them."""
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
