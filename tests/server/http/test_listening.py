import socket

import pytest

from ebbtide.errors import StartupError
from ebbtide.server.http.listening import listen, url_of


def test_port_zero_takes_a_free_one() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port)).close()


def test_any_address_is_shown_as_one_that_a_client_can_use() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")


def test_ipv6_addresses_are_bracketed() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener = listen("::1", 0)
    except StartupError as error:
        pytest.skip(str(error))
    with listener:
        assert url_of(listener).startswith("http://[::1]:")


def test_a_port_in_use_is_refused() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(StartupError, match=f"Cannot listen on 127.0.0.1 port {port}: Address already in use"):
            listen("127.0.0.1", port)


def test_an_unresolvable_address_is_refused() -> None:
    with pytest.raises(StartupError, match=r"Cannot listen on 192\.0\.2\.1 port 0"):
        listen("192.0.2.1", 0)
    with pytest.raises(StartupError, match="Cannot resolve the address 'no such host'"):
        listen("no such host", 0)
