"""Echoes the prompt in the response: its text, and the offset of each token in it.

The module does not depend on the API.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ebbtide.tokenization.vocabulary import Vocabulary

from .token_offsets import TokenOffsets


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt's text, and the offset of each prompt token in it, in characters."""

    text: str
    offsets: list[int]


def echo_of_text(text: str, tokens: Sequence[int], vocabulary: Vocabulary) -> Echo:
    """Return the echo of a prompt that was sent as a string. The echoed text is this string."""
    starts, shown = _decoded(tokens, vocabulary, hidden=(), is_complete=True)
    return Echo(text, _shifted(starts, len(shown) - len(text), len(text)))


def echo_of_ids(tokens: Sequence[int], vocabulary: Vocabulary, *, hidden: Collection[int], is_complete: bool) -> Echo:
    """Return the echo of a prompt that was sent as token ids. The tokens in ``hidden`` have no text, as in the output.

    is_complete: True if no output follows. If output follows, it may complete an incomplete character at the end.
    """
    starts, shown = _decoded(tokens, vocabulary, hidden=hidden, is_complete=is_complete)
    text = shown.removeprefix(" ") if vocabulary.strips_first_space else shown
    return Echo(text, _shifted(starts, len(shown) - len(text), len(text)))


def incomplete_character(tokens: Sequence[int], vocabulary: Vocabulary) -> bytes:
    """Return the bytes of the incomplete character at the end of the tokens; b"" if there is none."""
    data = b"".join(map(vocabulary.piece, tokens))
    return data[codecs.utf_8_decode(data, "replace", False)[1] :]


def _decoded(
    tokens: Sequence[int], vocabulary: Vocabulary, *, hidden: Collection[int], is_complete: bool
) -> tuple[list[int], str]:
    """Return the offset of each token and the text.

    The tokens of a split character have the offset of its first byte.
    """
    pieces = [b"" if token in hidden else vocabulary.piece(token) for token in tokens]
    offsets = TokenOffsets()
    return [offsets.next(piece) for piece in pieces], codecs.utf_8_decode(b"".join(pieces), "replace", is_complete)[0]


def _shifted(starts: list[int], excess: int, length: int) -> list[int]:
    """Return the offsets after removal of the first ``excess`` characters, which the tokenizer added (BOS or space)."""
    return [min(max(start - max(excess, 0), 0), length) for start in starts]
