"""The listening socket, taken before anything slow is done, and what to call it."""

from __future__ import annotations

import socket

from ebbtide.errors import StartupError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host`` and ``port`` (0: a free one). Raises StartupError with one sentence."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartupError(f"There is no address {host!r} to listen on: {error.strerror}.") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # at once: a second daemon could still bind, but not listen, on the same port
    except OSError as error:
        listener.close()
        raise StartupError(
            f"Cannot listen on {host} port {port}: {error.strerror}. Another --port, or 0 for a free one, may help."
        ) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, *, secure: bool = False) -> str:
    """The address that a client on this machine can use. secure: it speaks HTTPS."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
