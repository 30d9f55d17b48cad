"""Messages to and from the encoder process, which computes embeddings and the scores of pairs of texts."""

from __future__ import annotations

from .base import Message, Part


class EncodeReq(Message, frozen=True):
    """Front → encoder: one text, which gets a vector, or one pair of texts, which gets a score.

    Attributes:
        text: the text; for a pair, the query.
        other: the second text of a pair; None for a single text.
        ids: token ids in place of ``text``, including the special tokens; None for a text.
        timeout_s: seconds until the request must have ended; None for no limit.
    """

    rid: str
    text: str = ""
    other: str | None = None
    ids: list[int] | None = None
    timeout_s: float | None = None


class EncodedItem(Part, frozen=True):
    """The result of one EncodeReq.

    Attributes:
        vector: little-endian float32; one number for a pair.
        num_tokens: tokens of the input.
    """

    rid: str
    vector: bytes
    num_tokens: int


class EncodedBatch(Message, frozen=True):
    """Encoder → front: the results of inputs that were computed together.

    Attributes:
        num_computed: number of computed tokens, including padding.
        seconds: time of the computation.
    """

    items: list[EncodedItem]
    num_computed: int
    seconds: float


class EncoderInfo(Part, frozen=True):
    """Properties of the encoder's model, sent once when it is ready.

    Attributes:
        scores_pairs: True for a cross-encoder, which scores pairs of texts and has no vectors.
        context_length: maximum tokens of an input.
        vocab_size: number of token ids.
        dimensions: length of a vector; 1 for a cross-encoder.
        shorter: True if the model was trained for shortened vectors, so that ``dimensions`` may be any smaller number.
    """

    scores_pairs: bool
    context_length: int
    vocab_size: int
    dimensions: int
    shorter: bool = False
