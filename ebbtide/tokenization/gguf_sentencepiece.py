"""Builds the tokenizer of a SentencePiece vocabulary in a GGUF file: BPE ("llama") or Unigram ("t5").

Spaces and flags are handled as in llama.cpp, the reference implementation of the format. In particular, the prefix
space is added at the start of a text and after each control token. The module does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .gguf_vocabulary import NORMAL, PREFIX, USER_DEFINED, StoredVocabulary
from .token_bytes import SPACE_MARK

BYTE = 6
NO_PREFIX_SPACE = ("gemma", "gemma2", "gemma3")  # older files of these models lack the flag
# Architecture → control tokens that keep the spaces that follow them; all others remove them. GGUF has no flag for it.
KEEPING_SPACES = {"phi3": ("<s>", "<unk>", "<|endoftext|>")}


def spaced(stored: StoredVocabulary) -> StoredVocabulary:
    """Return the vocabulary with U+2581 replaced by spaces in user-defined tokens, so that they match in texts.

    Some converters write U+2581 in these tokens.
    """
    tokens = list(stored.tokens)
    for index, kind in enumerate(stored.kinds):
        plain = tokens[index].replace(SPACE_MARK, " ")
        if kind == USER_DEFINED and plain not in stored.ids:
            tokens[index] = plain
    return replace(stored, tokens=tokens)


def removes_spaces(stored: StoredVocabulary, token: str) -> bool:
    """Return True if a control token removes the spaces that follow it in a text."""
    architecture = stored.header.metadata.get("general.architecture")
    return architecture in KEEPING_SPACES and token not in KEEPING_SPACES[str(architecture)]


def pair_merging(stored: StoredVocabulary) -> Any:
    """Return the BPE tokenizer, still without added tokens and post-processor."""
    from tokenizers import Tokenizer, models

    unknown = stored.token("unknown", 0)
    merges = stored.merges or list(_merges(stored))
    model = models.BPE(stored.ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in stored.kinds)
    return _with_spaces(Tokenizer(model), stored, default=_architecture(stored) not in NO_PREFIX_SPACE)


def unigram(stored: StoredVocabulary) -> Any:
    """Return the Unigram tokenizer, still without added tokens and post-processor."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    unknown = stored.token("unknown", 2)
    vocab = list(zip(stored.tokens, stored.scores(), strict=True))
    unknown_id = None if unknown is None else stored.ids[unknown]
    model = models.Unigram(vocab, unknown_id, BYTE in stored.kinds)
    tokenizer = Tokenizer(model)
    if BYTE in stored.kinds:  # otherwise the text "<0x41>" would be encoded as the token of the byte 0x41
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "isolated")
    return _with_spaces(tokenizer, stored, default=False)


def _with_spaces(tokenizer: Any, stored: StoredVocabulary, *, default: bool) -> Any:
    from tokenizers import Regex, decoders, normalizers

    is_prefixed = stored.flag("add_space_prefix", default=default)
    steps: list[Any] = []
    if charsmap := stored.header.array(f"{PREFIX}precompiled_charsmap"):
        steps.append(normalizers.Precompiled(bytes(int(value) & 0xFF for value in charsmap)))
    if stored.flag("remove_extra_whitespaces", default=False):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if is_prefixed:
        steps.append(normalizers.Prepend(SPACE_MARK))
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE_MARK)])
    parts = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if is_prefixed else parts)
    return tokenizer


def _merges(stored: StoredVocabulary) -> Iterator[tuple[str, str]]:
    """Yield the merges: for each token, the pairs of tokens that form it.

    The tokens are in descending order of their scores, then in order of their ids. If a converter did not write the
    scores, all are equal, and the ids have the order of the merges.
    """
    scores, tokens = stored.scores(), stored.tokens
    normal = [index for index, kind in enumerate(stored.kinds) if kind == NORMAL]
    known = {tokens[index] for index in normal}
    for index in sorted(normal, key=lambda one: (-scores[one], one)):
        token = tokens[index]
        for cut in range(len(token) - 1, 0, -1):
            if token[:cut] in known and token[cut:] in known:
                yield token[:cut], token[cut:]


def _architecture(stored: StoredVocabulary) -> str:
    return str(stored.header.metadata.get("general.architecture"))
