"""Requests of other APIs written as the body of a chat, so that every rule of the chat route holds for them too.

Knows no other API: it is told by which names the client knows the fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ebbtide.errors import Rejected

from ...http.strict_json import convert
from ...parsers.tool_fields import tool_use
from ...state import AppState
from .. import fields
from .chat_prompt import chat_prompt
from .chat_request import ChatBody
from .prepared_chat import PreparedChat, prepare_chat


async def order_as_chat(state: AppState, chat: Mapping[str, Any], names: Mapping[str, str]) -> PreparedChat:
    """What a request comes to that says the same as ``chat``, whose fields that are None are absent.

    names: a chat's field → the client's name for it. Raises Rejected, in the client's names.
    """
    with errors_named(names):
        return await prepare_chat(state, chat_body(chat))


async def num_prompt_tokens(state: AppState, chat: Mapping[str, Any], names: Mapping[str, str]) -> int:
    """How many tokens the prompt of such a request has, whether it fits or not. Raises Rejected likewise."""
    with errors_named(names):
        body = chat_body(chat)
        return len(await state.prompts.chat(chat_prompt(body, tool_use(body), state.profile)))


def chat_body(chat: Mapping[str, Any]) -> ChatBody:
    """The checked body. Raises Rejected, in the chat's names."""
    given = {name: value for name, value in chat.items() if value is not None}
    fields.refuse_unsupported(given, fields.CHAT_UNSUPPORTED)
    return convert(given, ChatBody)


@contextmanager
def errors_named(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that leave this block name the client's fields instead of the chat's."""
    try:
        yield
    except Rejected as error:
        error.message = re.sub(r"'(\w+)'", lambda found: f"'{names.get(found[1], found[1])}'", error.message)
        field = re.split(r"[.\[]", error.param or "", maxsplit=1)[0]
        error.param = names.get(field, error.param)  # what is inside of a field has no name of the client's
        raise
