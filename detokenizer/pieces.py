"""Converts token ids to bytes and log-probability entries. All requests share one table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ebbtide.messages import TextAlternative, TextLogprob, TokenLogprob
from ebbtide.tokenization.vocabulary import Vocabulary


class Pieces:
    """A table that maps token ids to their bytes. An id without a token (embedding padding) maps to b""."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.strips_first_space = vocabulary.strips_first_space
        self._all = vocabulary.pieces
        self._plain = list(vocabulary.pieces)
        for token in vocabulary.special_ids:
            if token < len(self._plain):
                self._plain[token] = b""

    def of(self, token: int, *, skip_special: bool) -> bytes:
        """Return the token's bytes; b"" for a control token if ``skip_special``."""
        table = self._plain if skip_special else self._all
        return table[token] if 0 <= token < len(table) else b""

    def joined(self, tokens: Iterable[int], *, skip_special: bool) -> bytes:
        """Return the concatenated bytes of several tokens."""
        return b"".join([self.of(token, skip_special=skip_special) for token in tokens])

    def logprob(self, token: int, entry: TokenLogprob) -> TextLogprob:
        """Convert the log-probability entry of one position to text.

        Raises ValueError if the entry has different numbers of ids and values, or if a value is NaN.
        """
        top = zip(entry.top_ids, entry.top_logprobs, strict=True)
        alternatives = [self._alternative(i, value) for i, value in top]
        return TextLogprob(self._alternative(token, entry.logprob), alternatives, entry.rank)

    def logprobs(self, tokens: Sequence[int], entries: Sequence[TokenLogprob]) -> list[TextLogprob]:
        """Convert the entries of several tokens. Entries beyond the number of tokens are ignored."""
        return [self.logprob(token, entry) for token, entry in zip(tokens, entries, strict=False)]

    def _alternative(self, token: int, logprob: float) -> TextAlternative:
        raw = self.of(token, skip_special=False)
        if math.isnan(logprob):
            raise ValueError(f"the log-probability of token {token} is NaN")
        return TextAlternative(raw.decode("utf-8", "replace"), raw, logprob, token)
