"""The vocabulary in the metadata of a GGUF file. The module does not depend on a tokenizer library."""

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
        tokens: token texts by id.
        kinds: token type ids by token id (``tokenizer.ggml.token_type``).
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
        """BPE merges in rank order; [] if the file has none."""
        stored = self.header.strings(f"{PREFIX}merges")
        return [(left, right) for left, _, right in (one.partition(" ") for one in stored)]

    def scores(self) -> list[float]:
        """Return the score of every id; 0 if the file has no score for it. Raises StartupError if one is not finite."""
        stored = [float(value) for value in self.header.array(f"{PREFIX}scores")]
        if not all(isfinite(value) for value in stored):
            raise StartupError(f"The array {PREFIX}scores of {self.header.path} contains a number that is not finite.")
        return [*stored, *[0.0] * (len(self.tokens) - len(stored))]

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean setting of the tokenizer, or ``default`` if the file lacks it."""
        return bool(self.header.metadata.get(PREFIX + name, default))

    def token(self, name: str, default: int | None = None) -> str | None:
        """Return the text of a special token; None if neither the file nor ``default`` gives a valid id."""
        value = self.header.metadata.get(f"{PREFIX}{name}_token_id", default)
        return self.tokens[value] if isinstance(value, int) and 0 <= value < len(self.tokens) else None


def stored_vocabulary(header: GGUFHeader) -> StoredVocabulary:
    """Return the vocabulary of a file; without stored types, all tokens are normal tokens.

    Raises StartupError if there are no tokens, or not as many types as tokens.
    """
    tokens = header.strings(f"{PREFIX}tokens")
    kinds = [int(value) for value in header.array(f"{PREFIX}token_type")] or [NORMAL] * len(tokens)
    if len(kinds) != len(tokens) or not tokens:
        raise StartupError(
            f"The tokenizer in {header.path} cannot be loaded: it has {len(tokens)} tokens ({PREFIX}tokens) and"
            f" {len(kinds)} token types ({PREFIX}token_type)."
        )
    return StoredVocabulary(header, tokens, kinds)
