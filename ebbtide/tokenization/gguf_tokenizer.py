"""Builds the tokenizer of a GGUF file with a byte-level vocabulary from its metadata.

The module does not import torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import StartupError
from .gguf_header import GGUFHeader, read_header
from .model_files import one_line

BYTE_LEVEL = "gpt2"
CONTROL, USER_DEFINED = 3, 4
PREFIX = "tokenizer.ggml."
# The patterns that split text before merges are applied, by the name in ``ggml.pre``; from the models' own tokenizers.
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


def load_byte_level(path: Path) -> Any | None:
    """Return the tokenizer of a file as a ``PreTrainedTokenizerFast``; None if its vocabulary is not byte-level.

    Raises StartupError with one sentence if the metadata is not that of a tokenizer or its ``pre`` is unknown.
    """
    header = read_header(path)
    if header.metadata.get(f"{PREFIX}model") != BYTE_LEVEL:
        return None
    from transformers import PreTrainedTokenizerFast

    tokens = header.strings(f"{PREFIX}tokens")
    specials = {
        f"{name}_token": _token(header, key, tokens)
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=_backend(header, tokens),
        chat_template=_chat_template(header),
        clean_up_tokenization_spaces=False,
        **{name: token for name, token in specials.items() if token is not None},
    )


def _backend(header: GGUFHeader, tokens: list[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [(left, right) for left, _, right in (one.partition(" ") for one in header.strings(f"{PREFIX}merges"))]
    kind = str(header.metadata.get(f"{PREFIX}pre", "default"))
    try:
        backend = Tokenizer(models.BPE(vocab, merges, ignore_merges=kind in IGNORING_MERGES))
    except Exception as error:  # raised without a narrower class if a merged token is missing
        raise StartupError(f"The tokenizer in {header.path} cannot be loaded: {one_line(error)}.") from error
    backend.pre_tokenizer = _pre_tokenizer(kind, header.path)
    backend.decoder = decoders.ByteLevel()
    types = header.array(f"{PREFIX}token_type")
    for token, token_type in zip(tokens, types, strict=False):
        if token_type in (CONTROL, USER_DEFINED):
            backend.add_tokens([AddedToken(token, special=token_type == CONTROL, normalized=False)])
    backend.post_processor = _post_processor(header, tokens, kind)
    return backend


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


def _post_processor(header: GGUFHeader, tokens: list[str], kind: str) -> Any:
    """Make the tokenizer add the start and end tokens to a text, as the file's metadata says."""
    from tokenizers import processors

    bos = _token(header, "bos", tokens) if header.metadata.get(f"{PREFIX}add_bos_token", kind in ADDING_BOS) else None
    eos = _token(header, "eos", tokens) if header.metadata.get(f"{PREFIX}add_eos_token", False) else None
    if bos is None and eos is None:
        return processors.ByteLevel(trim_offsets=False)
    added = [token for token in (bos, eos) if token is not None]
    single = " ".join([*([bos] if bos else []), "$A", *([eos] if eos else [])])
    return processors.TemplateProcessing(
        single=single, special_tokens=[(token, tokens.index(token)) for token in added]
    )


def _token(header: GGUFHeader, name: str, tokens: list[str]) -> str | None:
    value = header.metadata.get(f"{PREFIX}{name}_token_id")
    return tokens[value] if isinstance(value, int) and value < len(tokens) else None


def _chat_template(header: GGUFHeader) -> str | dict[str, str] | None:
    """Return the chat template; if the file has several, such as one for tools, return all of them by name."""
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
