"""New chat messages as token ids, for a front that does not know whether the session has a turn already."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.errors import Rejected
from ebbtide.tokenization.tokenizer import ChatPrompt, TextTokenizer

from .chat_turns import encode_first_turn, encode_next_turn


@dataclass(frozen=True, slots=True)
class EncodedTurn:
    """The messages as a session's first turn and as a later one; see ``SessionTurn`` for the fields."""

    prompt: list[int]
    continuation: list[int]
    head: int = 0
    refusal: str = ""

    @property
    def shortest(self) -> int:
        """Tokens that the messages have at least."""
        return min(len(ids) for ids in (self.prompt, self.continuation) if ids)


def encode_turn(tokenizer: TextTokenizer, begins: ChatPrompt, goes_on: ChatPrompt) -> EncodedTurn:
    """Both forms of the messages; one may be missing. Raises Rejected when the template has neither.

    begins, goes_on: they differ where only the first turn has what this server writes in front of a conversation.
    """
    try:
        first = encode_first_turn(tokenizer, begins)
    except Rejected as refusal:
        try:
            following = encode_next_turn(tokenizer, goes_on)
        except Rejected:
            raise refusal from None  # what is wrong with the messages themselves says more
        return EncodedTurn([], following.ids, following.head, refusal.message)
    try:
        following = encode_next_turn(tokenizer, goes_on)
    except Rejected as refusal:
        return EncodedTurn(first, [], 0, refusal.message)
    return EncodedTurn(first, following.ids, following.head)
