"""Messages to and from the encoder process, which computes embeddings and scores of text pairs."""

from __future__ import annotations

from .base import Message, Part


class EncodeReq(Message, frozen=True):
    """Front → encoder: compute the vector of one text, or the score of one text pair.

    Attributes:
        text: the text; for a pair, the query.
        other: the second text of a pair; None for a single text.
        ids: token ids to use in place of ``text``, including special tokens; None to tokenize ``text``.
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
        vector: the embedding as little-endian float32; for a pair, the score as one float32.
        num_tokens: number of tokens of the input.
    """

    rid: str
    vector: bytes
    num_tokens: int


class EncodedBatch(Message, frozen=True):
    """Encoder → front: the results of inputs that were computed together.

    Attributes:
        num_computed: number of computed tokens, including padding.
        seconds: duration of the computation.
    """

    items: list[EncodedItem]
    num_computed: int
    seconds: float


class EncoderInfo(Part, frozen=True):
    """Properties of the encoder's model, sent once when the encoder process is ready.

    Attributes:
        scores_pairs: True for a cross-encoder, which scores text pairs and computes no vectors.
        context_length: maximum number of tokens of an input.
        vocab_size: number of token ids.
        dimensions: length of a vector; 1 for a cross-encoder.
        shorter: True if the model was trained for shortened vectors, so that a request may ask for fewer dimensions.
    """

    scores_pairs: bool
    context_length: int
    vocab_size: int
    dimensions: int
    shorter: bool = False
