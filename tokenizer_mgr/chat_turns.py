"""Encodes chat messages as the first or the next turn of a conversation whose earlier turns are stored as tokens.

The template renders a placeholder exchange with and without the new messages; the difference is the text of the new
turn. The module does not depend on sessions.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from ebbtide.errors import Rejected
from ebbtide.tokenization.tokenizer import ChatPrompt, TextTokenizer

REWRITES = (
    "This model's chat template renders earlier messages differently once new ones follow, so these messages cannot"
    " continue a session. Send the whole conversation without 'session_id'."
)


@dataclass(frozen=True, slots=True)
class NextTurn:
    """The token ids that follow an assistant message.

    Attributes:
        head: number of leading ids that close the assistant message
    """

    ids: list[int]
    head: int


def encode_first_turn(tokenizer: TextTokenizer, chat: ChatPrompt) -> list[int]:
    """Return the token ids of ``chat`` as the beginning of a conversation.

    Raises Rejected ``session_chat_unsupported`` if the template renders ``chat`` differently once messages follow, or
    does not render an assistant message verbatim.
    """
    ids = tokenizer.encode_chat(chat)
    question, answer = _words(2)
    messages = chat.messages
    if not chat.continue_final_message:
        messages = [*messages, {"role": "assistant", "content": answer}]
        before = _rendered(tokenizer, chat, messages)
        _end_of(answer, before)
        _check_begins(before, tokenizer.render_chat(chat))
    after = _rendered(tokenizer, chat, [*messages, {"role": "user", "content": question}])
    _check_begins(after, _rendered(tokenizer, chat, messages))
    return ids


def encode_next_turn(tokenizer: TextTokenizer, chat: ChatPrompt) -> NextTurn:
    """Encode the messages of ``chat`` as the continuation of a conversation that ends with an assistant message.

    Raises Rejected ``session_chat_unsupported`` if the new messages change how the template renders the earlier ones.
    """
    if chat.messages[0]["role"] == "assistant":
        raise _unsupported("The session already contains the assistant's messages: send only the new messages.")
    question, answer = _words(2)
    exchange = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    before = _rendered(tokenizer, chat, exchange)
    start = _end_of(answer, before)

    def skip(rendered: str) -> int:
        _check_begins(rendered, before)
        return start

    ids = tokenizer.encode_chat(replace(chat, messages=[*exchange, *chat.messages]), skip)
    closing = tokenizer.encode_chat(_closed(chat, exchange), lambda _: start)
    return NextTurn(ids, _common(ids, closing))


def _words(count: int) -> list[str]:
    """Return random words, which are unlikely to occur anywhere else in the rendered text."""
    return [f"W{secrets.token_hex(8)}" for _ in range(count)]


def _closed(chat: ChatPrompt, messages: list[dict[str, Any]]) -> ChatPrompt:
    return replace(chat, messages=messages, add_generation_prompt=False, continue_final_message=False)


def _rendered(tokenizer: TextTokenizer, chat: ChatPrompt, messages: list[dict[str, Any]]) -> str:
    return tokenizer.render_chat(_closed(chat, messages))


def _end_of(answer: str, text: str) -> int:
    """Return the index just after ``answer`` in ``text``. Raises Rejected unless ``answer`` occurs exactly once."""
    if text.count(answer) != 1:
        raise _unsupported("This model's chat template does not render an assistant message verbatim.")
    return text.index(answer) + len(answer)


def _check_begins(text: str, beginning: str) -> None:
    if not text.startswith(beginning):
        raise _unsupported(REWRITES)


def _common(ids: list[int], others: list[int]) -> int:
    """Return the length of the common prefix."""
    pairs = zip(ids, others, strict=False)
    return next((count for count, (one, other) in enumerate(pairs) if one != other), min(len(ids), len(others)))


def _unsupported(message: str) -> Rejected:
    return Rejected(message, code="session_chat_unsupported", param="messages")
