"""Token ids as bytes: what the detokenizer and the grammar compiler need of a tokenizer, and the simulated model's own.

Plain data, small enough to send to a process; knows nothing of the library that trained it.
"""

from __future__ import annotations

from ..messages import Part


class Vocabulary(Part, frozen=True):
    """Every token id's bytes. A text is the bytes of its tokens joined and decoded as UTF-8.

    pieces: index = token id; b"" for an id without text. special_ids: control tokens, left out of answers by default.
    eos_ids: what ends an answer. strips_first_space: SentencePiece style, a text's first space is not part of it.
    """

    pieces: list[bytes]
    special_ids: list[int]
    eos_ids: list[int]
    strips_first_space: bool = False


# The simulated model: one token per byte, then four control tokens.
SIM_EOS = 256
SIM_SYSTEM = 257
SIM_USER = 258
SIM_ASSISTANT = 259
SIM_SPECIAL = {"<|end|>": SIM_EOS, "<|system|>": SIM_SYSTEM, "<|user|>": SIM_USER, "<|assistant|>": SIM_ASSISTANT}
SIM_VOCAB_SIZE = 256 + len(SIM_SPECIAL)


def sim_vocabulary() -> Vocabulary:
    """The byte-level vocabulary behind ``MODEL sim``."""
    pieces = [bytes([value]) for value in range(256)] + [name.encode() for name in SIM_SPECIAL]
    return Vocabulary(pieces=pieces, special_ids=list(SIM_SPECIAL.values()), eos_ids=[SIM_EOS])
