"""The listening socket and its URL. The socket is opened before the slow parts of the start."""

from __future__ import annotations

import socket
import sys

from ebbtide.errors import StartupError

BACKLOG = 2048
MAX_UNSENT_BYTES = (
    128 << 10
)  # limit for unsent bytes in the kernel's send buffer, per connection; by default it may be megabytes
SLOW_READER_TIMEOUT_S = 60.0


def listen(host: str, port: int, *, slow_reader_timeout_s: float = SLOW_READER_TIMEOUT_S) -> socket.socket:
    """Open a socket that listens on ``host`` and ``port`` (0 for any free port).

    Raises StartupError if the socket cannot be opened.

    slow_reader_timeout_s: seconds after which a connection is closed if there is data to send and the client
        acknowledges none.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartupError(f"Cannot resolve the address {host!r}: {error.strerror}.") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _limit_unsent_data(listener, slow_reader_timeout_s)
        listener.bind(address)
        listener.listen(BACKLOG)  # listen immediately, because another daemon could bind the port before this call
    except OSError as error:
        listener.close()
        raise StartupError(
            f"Cannot listen on {host} port {port}: {error.strerror}. Try another --port, or 0 for any free port."
        ) from error
    listener.setblocking(False)
    return listener


def _limit_unsent_data(listener: socket.socket, timeout_s: float) -> None:
    """Set limits that every accepted connection inherits.

    The kernel enforces the timeout, because only the kernel sees the client's acknowledgements.
    """
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(timeout_s * 1000)))


def url_of(listener: socket.socket, *, secure: bool = False) -> str:
    """Return the URL for a client on this machine.

    secure: True if the server uses HTTPS.
    """
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
