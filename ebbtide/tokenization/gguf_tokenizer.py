"""Builds the tokenizer of a GGUF file from its metadata. The module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import StartupError
from .gguf_byte_level import adds_bos, byte_level
from .gguf_header import GGUFHeader, read_header
from .gguf_sentencepiece import pair_merging, removes_spaces, spaced, unigram
from .gguf_vocabulary import CONTROL, PREFIX, USER_DEFINED, StoredVocabulary, stored_vocabulary
from .model_files import one_line
from .tokenizer_parts import TokenizerParts


def _unchanged(stored: StoredVocabulary) -> StoredVocabulary:
    return stored


def _keeps_spaces(stored: StoredVocabulary, token: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of vocabulary.

    Attributes:
        build: returns the tokenizer, still without added tokens and post-processor.
        prepared: returns the vocabulary with the token texts with which the tokenizer is built.
        adds_bos: returns True if BOS is added to a text when the file has no flag for it.
        adds_eos: True if EOS is added to a text when the file has no flag for it.
        removes_spaces: returns True if a control token removes the spaces that follow it.
        special: (key, id) of special tokens, used if the file does not name them.
    """

    build: Callable[[StoredVocabulary], Any]
    prepared: Callable[[StoredVocabulary], StoredVocabulary]
    adds_bos: Callable[[StoredVocabulary], bool]
    adds_eos: bool = False
    removes_spaces: Callable[[StoredVocabulary, str], bool] = _keeps_spaces
    special: tuple[tuple[str, int], ...] = ()


KINDS = {
    "gpt2": Kind(byte_level, _unchanged, adds_bos),
    "llama": Kind(
        pair_merging,
        spaced,
        lambda stored: True,
        removes_spaces=removes_spaces,
        special=(("unknown", 0), ("bos", 1), ("eos", 2)),
    ),
    "t5": Kind(unigram, spaced, lambda stored: False, adds_eos=True, special=(("eos", 1), ("unknown", 2))),
}
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def load_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Return the tokenizer of a GGUF file.

    Raises StartupError if the tokenizer's metadata is invalid or its kind is unknown.
    """
    header = read_header(path)
    name = header.metadata.get(f"{PREFIX}model")
    if name not in KINDS:
        raise StartupError(
            f"The tokenizer in {path} cannot be loaded: its tokenizer.ggml.model is {name!r}, which is not supported."
        )
    kind = KINDS[str(name)]
    stored = kind.prepared(stored_vocabulary(header))
    defaults = dict(kind.special)
    named = {
        name: token for name, key in SPECIAL.items() if (token := stored.token(key, defaults.get(key))) is not None
    }
    backend = _backend(stored, kind, named.values())
    control = {i: token.content for i, token in backend.get_added_tokens_decoder().items() if token.special}
    eos = named.get("eos_token")
    return TokenizerParts(
        backend=backend,
        class_name="PreTrainedTokenizerFast",  # transformers' class for tokenizers without code of their own
        special=control | {backend.token_to_id(token): token for token in named.values()},
        named=named,
        chat_template=_chat_template(header),
        eos_ids=frozenset() if eos is None else frozenset({backend.token_to_id(eos)}),
    )


def _backend(stored: StoredVocabulary, kind: Kind, named: Iterable[str]) -> Any:
    """Build the tokenizer. named: tokens that are control tokens even if the file gives them another type."""
    try:
        tokenizer = kind.build(stored)
        tokenizer.add_tokens(list(_added_tokens(stored, kind, frozenset(named))))
    except StartupError:
        raise
    except Exception as error:  # the library raises plain exceptions, for example if a merged token is missing
        raise StartupError(f"The tokenizer in {stored.header.path} cannot be loaded: {one_line(error)}.") from error
    tokenizer.post_processor = _post_processor(stored, kind)
    return tokenizer


def _added_tokens(stored: StoredVocabulary, kind: Kind, named: Collection[str]) -> Iterator[Any]:
    from tokenizers import AddedToken

    for token, token_kind in zip(stored.tokens, stored.kinds, strict=False):
        if token_kind in (CONTROL, USER_DEFINED):
            is_control = token_kind == CONTROL
            right = is_control and kind.removes_spaces(stored, token)
            yield AddedToken(token, special=is_control, normalized=False, rstrip=right)
        elif token in named:
            yield AddedToken(token, special=True, normalized=False)


def _post_processor(stored: StoredVocabulary, kind: Kind) -> Any:
    """Return the post-processor that adds BOS and EOS to a text as the file's metadata requires."""
    from tokenizers import processors

    defaults = dict(kind.special)
    bos = eos = None
    if stored.flag("add_bos_token", default=kind.adds_bos(stored)):
        bos = stored.token("bos", defaults.get("bos"))
    if stored.flag("add_eos_token", default=kind.adds_eos):
        eos = stored.token("eos", defaults.get("eos"))
    added = [token for token in (bos, eos) if token is not None]
    single = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    return processors.TemplateProcessing(single=single, special_tokens=[(token, stored.ids[token]) for token in added])


def _chat_template(header: GGUFHeader) -> str | dict[str, str] | None:
    """Return the chat template, or all templates by name if the file has several; None if it has none."""
    prefix = "tokenizer.chat_template"
    named = {
        key.removeprefix(f"{prefix}."): value
        for key, value in header.metadata.items()
        if key.startswith(f"{prefix}.") and isinstance(value, str)
    }
    default = header.metadata.get(prefix)
    if not isinstance(default, str):
        return named or None
    return {"default": default, **named} if named else default
