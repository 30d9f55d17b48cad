"""The listening socket, taken before anything slow is done, and what to call it."""

from __future__ import annotations

import socket
import sys

from ebbtide.errors import StartupError

BACKLOG = 2048
MAX_UNSENT_BYTES = 128 << 10  # that the kernel keeps for a connection; without a limit it takes some megabytes
SLOW_READER_TIMEOUT_S = 60.0


def listen(host: str, port: int, *, slow_reader_timeout_s: float = SLOW_READER_TIMEOUT_S) -> socket.socket:
    """A socket that listens on ``host`` and ``port`` (0: a free one). Raises StartupError with one sentence.

    slow_reader_timeout_s: a peer that takes nothing for so long, while something waits for it, loses its connection.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartupError(f"There is no address {host!r} to listen on: {error.strerror}.") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _limit_unsent_data(listener, slow_reader_timeout_s)
        listener.bind(address)
        listener.listen(BACKLOG)  # at once: a second daemon could still bind, but not listen, on the same port
    except OSError as error:
        listener.close()
        raise StartupError(
            f"Cannot listen on {host} port {port}: {error.strerror}. Another --port, or 0 for a free one, may help."
        ) from error
    listener.setblocking(False)
    return listener


def _limit_unsent_data(listener: socket.socket, timeout_s: float) -> None:
    """Limits that every accepted connection inherits. The kernel alone sees whether a peer takes anything at all."""
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(timeout_s * 1000)))


def url_of(listener: socket.socket, *, secure: bool = False) -> str:
    """The address that a client on this machine can use. secure: it speaks HTTPS."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
