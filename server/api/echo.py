"""The prompt as a part of the answer: its text, and where in it each token begins. Knows no API's form."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ebbtide.tokenization.vocabulary import Vocabulary

from .token_offsets import TokenOffsets


@dataclass(frozen=True, slots=True)
class Echo:
    """text: what comes in front of the answer. offsets: one for each token of the prompt, in characters."""

    text: str
    offsets: list[int]


def echo_of_text(text: str, tokens: Sequence[int], vocabulary: Vocabulary) -> Echo:
    """A prompt that came as text comes back as it was."""
    starts, shown = _decoded(tokens, vocabulary, hidden=(), ends=True)
    return Echo(text, _shifted(starts, len(shown) - len(text), len(text)))


def echo_of_ids(tokens: Sequence[int], vocabulary: Vocabulary, *, hidden: Collection[int], ends: bool) -> Echo:
    """A prompt that came as token ids is decoded; control tokens in ``hidden`` have no text, as in the answer.

    ends: no answer follows. Else half a character at the prompt's end is left to the answer, which may complete it.
    """
    starts, shown = _decoded(tokens, vocabulary, hidden=hidden, ends=ends)
    text = shown.removeprefix(" ") if vocabulary.strips_first_space else shown
    return Echo(text, _shifted(starts, len(shown) - len(text), len(text)))


def incomplete_character(tokens: Sequence[int], vocabulary: Vocabulary) -> bytes:
    """The bytes of a character that the tokens end within; b"" when they end with a whole one."""
    data = b"".join([vocabulary.pieces[token] for token in tokens])
    return data[codecs.utf_8_decode(data, "replace", False)[1] :]


def _decoded(
    tokens: Sequence[int], vocabulary: Vocabulary, *, hidden: Collection[int], ends: bool
) -> tuple[list[int], str]:
    """Where each token begins, and the text. A character split over tokens begins where its first byte does."""
    pieces = [b"" if token in hidden else vocabulary.pieces[token] for token in tokens]
    places = TokenOffsets()
    return [places.next(piece) for piece in pieces], codecs.utf_8_decode(b"".join(pieces), "replace", ends)[0]


def _shifted(starts: list[int], excess: int, length: int) -> list[int]:
    """Offsets in a text that lacks ``excess`` characters at its beginning: a BOS, or a tokenizer's own space."""
    return [min(max(start - max(excess, 0), 0), length) for start in starts]
