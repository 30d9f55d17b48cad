"""Derives the bytes of every token id from the decoder of a Hugging Face tokenizer."""

from __future__ import annotations

import json
import re
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "\u2581"


def token_bytes(backend: Any, vocab_size: int) -> list[bytes]:
    """Return the bytes of ids 0 … ``vocab_size - 1``; b"" for an id without a token.

    For byte-level and SentencePiece decoders, the joined bytes of a token sequence equal the decoded text, except that
    an added token of a byte-level vocabulary has the bytes of its own text. For other decoders, each token is decoded
    after the same fixed token, which is correct unless the decoder looks further back.
    """
    tokens: list[str | None] = [backend.id_to_token(i) for i in range(vocab_size)]
    added = backend.get_added_tokens_decoder()
    kinds = _decoder_kinds(backend)
    if "ByteLevel" in kinds:
        # The tokenizers library decodes added tokens with the byte alphabet too, which drops the first letter of "đem".
        return [token.encode() if token and i in added else _from_byte_level(token) for i, token in enumerate(tokens)]
    if "Metaspace" in kinds or "ByteFallback" in kinds:
        return [_from_sentencepiece(token, byte_fallback="ByteFallback" in kinds) for token in tokens]
    return _from_neighbours(backend, tokens)


def strips_first_space(backend: Any) -> bool:
    """Return True if the decoder removes the space before the first token of a text."""
    if backend.decoder is None:
        return True  # without a decoder, the tokenizers library joins the tokens with spaces
    for part in _decoder_parts(backend):
        if part["type"] == "WordPiece":
            return True
        if part["type"] == "Strip" and part["content"] == " " and part["start"] >= 1:
            return True
        if part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never":
            return True
    return False


def _decoder_parts(backend: Any) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    parts: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return parts


def _decoder_kinds(backend: Any) -> set[str]:
    return {part["type"] for part in _decoder_parts(backend)}


def _byte_level_alphabet() -> dict[str, int]:
    """Return character → byte for byte-level BPE: a printable byte's own character, else one from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [value for value in range(256) if value not in printable]
    return {chr(v): v for v in printable} | {chr(0x100 + i): v for i, v in enumerate(rest)}


ALPHABET = _byte_level_alphabet()


def _from_byte_level(token: str | None) -> bytes:
    if token is None:
        return b""
    if all(c in ALPHABET for c in token):
        return bytes(ALPHABET[c] for c in token)
    return token.encode()  # an added token with characters outside the alphabet is literal text


def _from_sentencepiece(token: str | None, *, byte_fallback: bool) -> bytes:
    if token is None:
        return b""
    value = BYTE_TOKEN.fullmatch(token) if byte_fallback else None
    return bytes([int(value[1], 16)]) if value else token.replace(SPACE_MARK, " ").encode()


def _from_neighbours(backend: Any, tokens: list[str | None]) -> list[bytes]:
    anchor = next(i for i, token in enumerate(tokens) if token is not None and token.isalpha())
    before = backend.decode([anchor], skip_special_tokens=False)
    pieces = []
    for i, token in enumerate(tokens):
        text = "" if token is None else backend.decode([anchor, i], skip_special_tokens=False)
        pieces.append(text.removeprefix(before).encode())
    return pieces
