"""Decodes token ids to text, all at once. The detokenizer process, in contrast, decodes output token by token."""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide.tokenization.vocabulary import Vocabulary


class VocabularyDecoder:
    """Decodes the token ids of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = vocabulary.pieces
        self._special = frozenset(vocabulary.special_ids)
        self._strips_first_space = vocabulary.strips_first_space

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool, begins: bool = True) -> str:
        """Decode ``ids``. Invalid UTF-8 becomes U+FFFD; padding ids of the vocabulary have no text.

        begins: True if the ids are the beginning of a text; some tokenizers add a space there, which is removed.
        """
        shown = [token for token in ids if not (skip_special_tokens and token in self._special)]
        text = b"".join([self._pieces[token] for token in shown if token < len(self._pieces)]).decode(errors="replace")
        return text.removeprefix(" ") if begins and self._strips_first_space else text
