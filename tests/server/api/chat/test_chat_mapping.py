"""Errors of the chat route in another API's names."""

from __future__ import annotations

import pytest

from ebbtide.errors import Rejected
from ebbtide.server.api.chat.chat_mapping import chat_body, errors_named

NAMES = {"messages": "input", "stop": "stop_sequences"}


@pytest.mark.parametrize(
    ("param", "named"), [("messages", "input"), ("messages[2].content[0]", "input"), ("top_p", "top_p"), (None, None)]
)
def test_an_error_names_the_clients_field(param: str | None, named: str | None) -> None:
    with pytest.raises(Rejected) as refusal, errors_named(NAMES):
        raise Rejected("'stop' and 'top_p' of 'messages'.", param=param, status=404, code="c")
    error = refusal.value
    assert error.message == "'stop_sequences' and 'top_p' of 'input'."
    assert (error.param, error.status, error.code) == (named, 404, "c")


def test_a_field_that_is_none_is_absent_and_rules_of_the_chat_hold() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert chat_body({"messages": messages, "temperature": None, "top_k": 3}).top_k == 3
    with pytest.raises(Rejected, match="top_k"):
        chat_body({"messages": messages, "top_k": -2})
