"""Builds the tokenizer of a byte-level vocabulary in a GGUF file. The module does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import StartupError
from .gguf_vocabulary import NORMAL, PREFIX, StoredVocabulary

# ``tokenizer.ggml.pre`` → pattern that splits the text before merges are applied, as in the models' own tokenizers.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{_WORDS[0]}|{_WORDS[1]}|\p{{N}}|{_REST}"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = rf"{_WORDS[0]}{_ENDING}|{_WORDS[1]}{_ENDING}|\p{{N}}{{1,3}}|{_REST}"
PATTERNS = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "dbrx", "smaug-bpe"), LLAMA3),
    **dict.fromkeys(("chatglm-bpe", "glm4"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), QWEN2),
    "tekken": TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), GPT4O),
}
GPT2 = ("gpt-2", "phi-2", "olmo", "exaone4", "default")
SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
IGNORING_MERGES = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "tekken", "glm4")
ADDING_BOS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "tekken")


def adds_bos(stored: StoredVocabulary) -> bool:
    """Return True if BOS is added to a text when the file has no flag for it."""
    return _kind(stored) in ADDING_BOS


def byte_level(stored: StoredVocabulary) -> Any:
    """Return the tokenizer, still without added tokens and post-processor.

    Raises StartupError if ``tokenizer.ggml.pre`` is unknown, or if the file has tokens that only merges produce, but
    no merges. Any other exception means that the vocabulary is damaged.
    """
    from tokenizers import Tokenizer, decoders, models

    merged = (token for token, kind in zip(stored.tokens, stored.kinds, strict=True) if kind == NORMAL and token[1:])
    if not stored.merges and any(merged):
        raise StartupError(
            f"The tokenizer in {stored.header.path} cannot be loaded: it has no {PREFIX}merges, without which every"
            " text becomes single bytes."
        )
    kind = _kind(stored)
    tokenizer = Tokenizer(models.BPE(stored.ids, stored.merges, ignore_merges=kind in IGNORING_MERGES))
    tokenizer.pre_tokenizer = _pre_tokenizer(kind, stored.header.path)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _kind(stored: StoredVocabulary) -> str:
    return str(stored.header.metadata.get(f"{PREFIX}pre", "default"))


def _pre_tokenizer(kind: str, path: Path) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if kind in GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind in SINGLE_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if kind not in PATTERNS:
        raise StartupError(
            f"The tokenizer in {path} cannot be loaded: its tokenizer.ggml.pre is {kind!r}, which is unknown."
        )
    split = pre_tokenizers.Split(Regex(PATTERNS[kind]), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
