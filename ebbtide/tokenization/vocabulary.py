"""The bytes of token ids, for the detokenizer and the grammar compiler, and the vocabulary of the simulated model.

A vocabulary is plain data, which can be sent to another process. The module does not depend on tokenizer libraries.
"""

from __future__ import annotations

from ..messages import Part


class Vocabulary(Part, frozen=True):
    """The bytes of every token id. The text of a token sequence is the joined bytes of its tokens, decoded as UTF-8.

    Attributes:
        pieces: bytes by token id; b"" for an id without text.
        special_ids: ids of the control tokens, whose text is omitted from outputs by default.
        eos_ids: ids of the tokens that end an output.
        strips_first_space: True if a space at the beginning of the decoded text is dropped (SentencePiece).
    """

    pieces: list[bytes]
    special_ids: list[int]
    eos_ids: list[int]
    strips_first_space: bool = False

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token id; b"" if the id is a row of the model's embedding without a token."""
        return self.pieces[token] if token < len(self.pieces) else b""


# The simulated model: one token per byte, then four control tokens.
SIM_EOS = 256
SIM_SYSTEM = 257
SIM_USER = 258
SIM_ASSISTANT = 259
SIM_SPECIAL = {"<|end|>": SIM_EOS, "<|system|>": SIM_SYSTEM, "<|user|>": SIM_USER, "<|assistant|>": SIM_ASSISTANT}
SIM_VOCAB_SIZE = 256 + len(SIM_SPECIAL)


def sim_vocabulary() -> Vocabulary:
    """Return the byte-level vocabulary of ``MODEL sim``."""
    pieces = [bytes([value]) for value in range(256)] + [name.encode() for name in SIM_SPECIAL]
    return Vocabulary(pieces=pieces, special_ids=list(SIM_SPECIAL.values()), eos_ids=[SIM_EOS])
