"""Errors of a chat request in another API's names."""

from __future__ import annotations

import pytest

from ebbtide.errors import Rejected
from ebbtide.server.api.param_names import params_named

NAMES = {"messages": "input", "stop": "stop_sequences"}


@pytest.mark.parametrize(
    ("param", "named"),
    [
        ("messages", "input"),
        ("messages[2].content[0]", "input"),
        ("stop", "stop_sequences"),
        ("top_p", "top_p"),
        (None, None),
    ],
)
def test_an_error_names_the_clients_field(param: str | None, named: str | None) -> None:
    with pytest.raises(Rejected) as refusal, params_named(NAMES):
        raise Rejected(f"'{param}' is wrong, unlike 'n'.", param=param, status=404, code="c")
    error = refusal.value
    assert error.message == f"'{named}' is wrong, unlike 'n'."
    assert (error.param, error.status, error.code) == (named, 404, "c")
