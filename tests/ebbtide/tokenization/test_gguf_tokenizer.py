"""Tokenizers of GGUF files with a byte-level vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.token_bytes import ALPHABET
from ebbtide.tokenization.tokenizer import TextTokenizer, load_tokenizer

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
ADDED = {"<｜User｜>": CONTROL, "<|end|>": CONTROL, "đem": USER_DEFINED, "naïve": USER_DEFINED, "<think>": USER_DEFINED}
USER, END, DEM = 258, 259, 260


MERGES = ["Ġ t", "1 2"]


def write(path: Path, architecture: str = "granite", merges: list[str] = MERGES, **changes: Any) -> TextTokenizer:
    """Write a vocabulary of all bytes, two merged tokens and the added tokens. changes: keys of tokenizer.ggml."""
    tokens = [*ALPHABET, "Ġt", "12", *ADDED]
    fields: dict[str, Any] = {"model": "gpt2", "pre": "qwen2", "eos_token_id": END, "bos_token_id": USER} | changes
    writer = GGUFWriter(path / "tiny.gguf", architecture)
    for key, value in fields.items():
        add = {str: writer.add_string, int: writer.add_uint32, bool: writer.add_bool}[type(value)]
        add(f"tokenizer.ggml.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", [ADDED.get(token, NORMAL) for token in tokens])
    if merges:
        writer.add_array("tokenizer.ggml.merges", merges)
    writer.add_string("tokenizer.chat_template", "{{ messages[0].content }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return load_tokenizer(ModelFiles("tiny", str(path), "tiny.gguf"))


def text_of(tokenizer: TextTokenizer, ids: list[int]) -> str:
    return b"".join(tokenizer.vocabulary.pieces[one] for one in ids).decode()


def test_text_is_unchanged_after_encoding_and_decoding(tmp_path: Path) -> None:
    tokenizer = write(tmp_path)
    text = "a tide đem naïve <think> 🌊 1212\n"
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert text_of(tokenizer, ids) == text
    assert DEM in ids
    assert tokenizer.vocabulary.pieces[DEM].decode() == "đem"


def test_merged_tokens_without_merges_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"tiny\.gguf cannot be loaded: it has no tokenizer\.ggml\.merges, without"):
        write(tmp_path, merges=[])


def test_control_tokens_may_have_characters_outside_the_byte_alphabet(tmp_path: Path) -> None:
    tokenizer = write(tmp_path)
    assert tokenizer.encode("<｜User｜>a", add_special_tokens=True) == [USER, list(ALPHABET).index("a")]
    assert tokenizer.vocabulary.special_ids == [USER, END]
    assert tokenizer.vocabulary.eos_ids == [END]
    assert tokenizer.vocab_size == 263


@pytest.mark.parametrize(("pre", "num_tokens"), [("llama-bpe", 1), ("qwen2", 2), ("smollm", 2), ("gpt-2", 1)])
def test_numbers_are_cut_as_the_pre_tokenizer_says(pre: str, num_tokens: int, tmp_path: Path) -> None:
    assert len(write(tmp_path, pre=pre, add_bos_token=False).encode("12", add_special_tokens=True)) == num_tokens


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({"add_bos_token": True}, (USER, None)),
        ({"pre": "llama-bpe"}, (USER, None)),
        ({"add_eos_token": True}, (None, END)),
    ],
)
def test_bos_and_eos_are_added_if_the_file_says_so(
    changes: dict[str, Any], ends: tuple[int | None, int | None], tmp_path: Path
) -> None:
    tokenizer = write(tmp_path, **changes)
    plain = tokenizer.encode("a", add_special_tokens=False)
    first, last = ends
    assert tokenizer.encode("a", add_special_tokens=True) == [
        *([first] if first is not None else []),
        *plain,
        *([last] if last is not None else []),
    ]


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StartupError, match=r"tiny\.gguf cannot be loaded: its tokenizer\.ggml\.pre is 'tide', which is"
    ):
        write(tmp_path, pre="tide")
