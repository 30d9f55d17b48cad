"""The number of connections that a server accepts."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from ebbtide.config import LimitsConfig
from ebbtide.server.http.http_server import MAX_OPEN_FILES, RESERVED_FILES, wire_limits


@pytest.fixture(autouse=True)
def file_limit() -> Iterator[tuple[int, int]]:
    """The limits of open files, restored afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_default_to_the_limit_of_open_files(file_limit: tuple[int, int]) -> None:
    _, hard = file_limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    assert wire_limits(LimitsConfig()).max_connections == most - RESERVED_FILES
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard), "the usual 1024 would not do"


def test_connections_never_exceed_the_limit_of_open_files() -> None:
    assert wire_limits(LimitsConfig(max_connections=10)).max_connections == 10
    assert wire_limits(LimitsConfig(max_connections=10**9)).max_connections < MAX_OPEN_FILES
    assert wire_limits(LimitsConfig(receive_timeout=2.5)).receive_timeout_s == 2.5
