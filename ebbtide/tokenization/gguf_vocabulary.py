"""The vocabulary that the header of a GGUF file describes. The module does not depend on a tokenizer library."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite

from ..errors import StartupError
from .gguf_header import GGUFHeader

PREFIX = "tokenizer.ggml."
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


@dataclass(frozen=True)
class StoredVocabulary:
    """A vocabulary as a GGUF file stores it.

    Attributes:
        header: header of the file.
        tokens: texts by id.
        kinds: GGUF's numbers of the token types by id.
    """

    header: GGUFHeader
    tokens: list[str]
    kinds: list[int]

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids by text."""
        return {token: index for index, token in enumerate(self.tokens)}

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """Merges in the order of their rank; [] if the file has none."""
        stored = self.header.strings(f"{PREFIX}merges")
        return [(left, right) for left, _, right in (one.partition(" ") for one in stored)]

    def scores(self) -> list[float]:
        """Return the scores by id, 0 for an id without a score. Raises StartupError for a score that is not finite."""
        stored = [float(value) for value in self.header.array(f"{PREFIX}scores")]
        if not all(isfinite(value) for value in stored):
            raise StartupError(f"The array {PREFIX}scores of {self.header.path} contains a number that is not finite.")
        return [*stored, *[0.0] * (len(self.tokens) - len(stored))]

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean setting of the tokenizer, or ``default`` if the file lacks it."""
        return bool(self.header.metadata.get(PREFIX + name, default))

    def token(self, name: str, default: int | None = None) -> str | None:
        """Return the text of a special token; None if neither the file nor ``default`` names a token."""
        value = self.header.metadata.get(f"{PREFIX}{name}_token_id", default)
        return self.tokens[value] if isinstance(value, int) and 0 <= value < len(self.tokens) else None


def stored_vocabulary(header: GGUFHeader) -> StoredVocabulary:
    """Return the vocabulary in a file; a token without a stored type counts as a normal token."""
    tokens = header.strings(f"{PREFIX}tokens")
    kinds = [int(value) for value in header.array(f"{PREFIX}token_type")][: len(tokens)]
    return StoredVocabulary(header, tokens, [*kinds, *[NORMAL] * (len(tokens) - len(kinds))])
