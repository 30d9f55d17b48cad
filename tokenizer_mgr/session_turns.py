"""Encodes new chat messages both as a first and as a later turn: only the scheduler knows which one a session needs."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.errors import Rejected
from ebbtide.tokenization.tokenizer import ChatPrompt, TextTokenizer

from .chat_turns import encode_first_turn, encode_next_turn


@dataclass(frozen=True, slots=True)
class EncodedTurn:
    """New messages, encoded both as the first turn and as a later turn of a session.

    ``SessionTurn`` describes the fields.
    """

    prompt: list[int]
    continuation: list[int]
    head: int = 0
    refusal: str = ""

    @property
    def shortest(self) -> int:
        """The number of tokens of the shorter encoding. An empty (unsupported) encoding is not considered."""
        return min(len(ids) for ids in (self.prompt, self.continuation) if ids)


def encode_turn(tokenizer: TextTokenizer, first: ChatPrompt, later: ChatPrompt) -> EncodedTurn:
    """Encode the messages both as the first turn and as a later turn of a session.

    An encoding that the template does not support is empty. Raises Rejected if the template supports neither.

    first: the conversation to render if the messages are the first turn. Only ``first`` may contain tool definitions.
    later: the conversation to render if the messages are a later turn.
    """
    try:
        prompt = encode_first_turn(tokenizer, first)
    except Rejected as refusal:
        try:
            following = encode_next_turn(tokenizer, later)
        except Rejected:
            raise refusal from None  # this error concerns the messages; the other error concerns the template
        return EncodedTurn([], following.ids, following.head, refusal.message)
    try:
        following = encode_next_turn(tokenizer, later)
    except Rejected as refusal:
        return EncodedTurn(prompt, [], 0, refusal.message)
    return EncodedTurn(prompt, following.ids, following.head)
