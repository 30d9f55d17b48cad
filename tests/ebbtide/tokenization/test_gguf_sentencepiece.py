"""Tokenizers of GGUF files with a SentencePiece vocabulary, compared with the sentencepiece library."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from gguf import GGUFWriter

from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.tokenizer import ChatPrompt, TextTokenizer, load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
CORPUS = ["the tide comes in and the tide goes out", "größer, naïve café", "日本語のテキスト", "12 + 34  = 46"] * 5
CORPUS += ["a  b   c", "tidetide aaaa aaa", "ebb and flow; flow and ebb!"] * 5
# Numbers of fields of the library's model format.
NORMALIZER_SPEC, CHARSMAP, ADD_DUMMY_PREFIX, REMOVE_EXTRA_WHITESPACES = 3, 2, 3, 4
ALPHABET = "thetideandflw  ,.!?12+=éö日本語🌊\n\tß"


@cache
def trained(kind: str, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A small model trained with the library; it has byte fallback unless ``options`` turn it off."""
    settings: dict[str, Any] = {
        "vocab_size": 360,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<think>", "▁▁"],
        "control_symbols": ["<|user|>"],
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type=kind, **(settings | options)
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind_of(model: sentencepiece.SentencePieceProcessor, index: int) -> int:
    tests = {
        UNKNOWN: model.is_unknown,
        CONTROL: model.is_control,
        UNUSED: model.is_unused,
        BYTE: model.is_byte,
    }
    names = ("<think>", "▁▁")
    found = [kind for kind, test in tests.items() if test(index)]
    return found[0] if found else USER_DEFINED if model.id_to_piece(index) in names else NORMAL


def write(
    folder: Path,
    trained_model: sentencepiece.SentencePieceProcessor,
    kind: str = "llama",
    *,
    architecture: str = "llama",
    **changes: Any,
) -> TextTokenizer:
    """Write the model as llama.cpp's converter does and load it. changes: keys to replace; None removes a key."""
    model = trained_model
    size = model.get_piece_size()
    normalizer = dict(wire_fields(dict(wire_fields(model.serialized_model_proto()))[NORMALIZER_SPEC]))
    fields: dict[str, Any] = {
        "model": kind,
        "pre": "default",
        "tokens": [model.id_to_piece(index) for index in range(size)],
        "scores": [model.get_score(index) for index in range(size)],
        "token_type": [kind_of(model, index) for index in range(size)],
        "bos_token_id": model.bos_id(),
        "eos_token_id": model.eos_id(),
        "unknown_token_id": model.unk_id(),
        "add_space_prefix": bool(normalizer.get(ADD_DUMMY_PREFIX, 1)),
        "remove_extra_whitespaces": bool(normalizer.get(REMOVE_EXTRA_WHITESPACES, 1)),
        "precompiled_charsmap": normalizer.get(CHARSMAP) or None,
    }
    writer = GGUFWriter(folder / "tiny.gguf", architecture)
    for key, value in (fields | changes).items():
        add(writer, f"tokenizer.ggml.{key}", value)
    writer.add_string("tokenizer.chat_template", "<s>{% for m in messages %}<|user|>{{ m.content }}</s>{% endfor %}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return load_tokenizer(ModelFiles("tiny", str(folder), "tiny.gguf"))


def add(writer: GGUFWriter, key: str, value: object) -> None:
    adders: Mapping[type, Any] = {
        str: writer.add_string,
        int: writer.add_uint32,
        bool: writer.add_bool,
        list: writer.add_array,
        bytes: writer.add_array,
    }
    if value is not None:
        adders[type(value)](key, value)


def wire_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of the fields of a protobuf message; a field with a length has bytes as its value."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 5:  # a 32-bit number
            at += 4
        elif key & 7 == 2:
            size = number()
            yield key >> 3, message[at : at + size]
            at += size
        else:
            yield key >> 3, number()


def texts(*, count: int = 300) -> Iterator[str]:
    """Texts with and without the spaces, line breaks, characters and user-defined tokens of the vocabulary."""
    rng = random.Random(5)
    yield from (" ", "  ", " a", "a ", "<think>", "a<think>b", "<think> <think>", "\n", "🌊🌊", "<0x41>", "tide  tide")
    for _ in range(count):
        parts = [rng.choice([*ALPHABET, "the", "tide", " and", "  ", "<think>"]) for _ in range(rng.randint(1, 12))]
        yield "".join(parts)


def text_of(tokenizer: TextTokenizer, ids: list[int]) -> str:
    text = b"".join(tokenizer.vocabulary.pieces[one] for one in ids).decode()
    return text.removeprefix(" ") if tokenizer.vocabulary.strips_first_space else text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("prefix", [True, False])
def test_texts_are_encoded_as_by_the_library(kind: str, prefix: bool, tmp_path: Path) -> None:
    model = trained(kind, add_dummy_prefix=prefix, user_defined_symbols=())
    tokenizer = write(tmp_path, model, {"bpe": "llama", "unigram": "t5"}[kind])
    for text in texts():
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == model.encode(text), text
        assert text_of(tokenizer, ids) == text


@pytest.mark.parametrize(("kind", "names"), [("bpe", ("<think>", "▁▁")), ("unigram", ("<think>",))])
def test_user_defined_tokens_are_found_in_texts(kind: str, names: tuple[str, ...], tmp_path: Path) -> None:
    """The prefix space is off, because after a user-defined token llama.cpp adds one and the library does not."""
    model = trained(kind, add_dummy_prefix=False, user_defined_symbols=names)
    tokenizer = write(tmp_path, model, {"bpe": "llama", "unigram": "t5"}[kind])
    for text in texts():
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == model.encode(text), text
        assert text_of(tokenizer, ids) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_spaces_and_characters_are_normalized_as_by_the_library(kind: str, tmp_path: Path) -> None:
    """The file has the rules of NFKC; repeated, leading and trailing spaces are removed."""
    options = {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True, "user_defined_symbols": ()}
    model = trained(kind, byte_fallback=False, vocab_size=120, **options)
    tokenizer = write(tmp_path, model, {"bpe": "llama", "unigram": "t5"}[kind])
    for text in (*texts(), "ｔｉｄｅ ﬁne ①"):
        assert tokenizer.encode(text, add_special_tokens=False) == model.encode(text), text


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("llama", {}, (1, None)),
        ("llama", {"add_bos_token": False}, (None, None)),
        ("llama", {"add_eos_token": True}, (1, 2)),
        ("llama", {"bos_token_id": None, "eos_token_id": None, "unknown_token_id": None}, (1, None)),
        ("t5", {}, (None, 2)),
        ("t5", {"add_eos_token": False, "add_bos_token": True}, (1, None)),
    ],
)
def test_bos_and_eos_are_added_as_in_llama_cpp(
    kind: str, changes: dict[str, Any], expected: tuple[int | None, int | None], tmp_path: Path
) -> None:
    model = trained({"llama": "bpe", "t5": "unigram"}[kind])
    tokenizer = write(tmp_path, model, kind, **changes)
    plain = tokenizer.encode("tide", add_special_tokens=False)
    wanted = [*expected[:1], *plain, *expected[1:]]
    assert tokenizer.encode("tide", add_special_tokens=True) == [one for one in wanted if one is not None]
    assert tokenizer.vocabulary.eos_ids == [2]


def test_files_without_flags_add_a_space_except_for_gemma(tmp_path: Path) -> None:
    model = trained("bpe")
    plain = write(tmp_path, model, add_space_prefix=None)
    gemma = write(tmp_path, model, architecture="gemma2", add_space_prefix=None)
    assert text_of(gemma, gemma.encode("tide", add_special_tokens=False)) == "tide"
    assert gemma.encode(" tide", add_special_tokens=False) == plain.encode("tide", add_special_tokens=False)


def test_without_scores_the_ids_have_the_order_of_the_merges(tmp_path: Path) -> None:
    """Converters that read only tokenizer.json give all tokens the score -1000."""
    model = trained("bpe", add_dummy_prefix=False, user_defined_symbols=())
    tokenizer = write(tmp_path, model, scores=[-1000.0] * model.get_piece_size())
    for text in texts():
        assert tokenizer.encode(text, add_special_tokens=False) == model.encode(text), text


def test_unused_and_byte_tokens_are_not_found_in_texts(tmp_path: Path) -> None:
    model = trained("bpe", add_dummy_prefix=False, user_defined_symbols=())
    index = model.piece_to_id("tide")
    assert index not in (0, model.unk_id())
    kinds = [UNUSED if one == index else kind_of(model, one) for one in range(model.get_piece_size())]
    tokenizer = write(tmp_path, model, token_type=kinds)
    ids = tokenizer.encode("tide <0x41>", add_special_tokens=False)
    assert index not in ids
    assert text_of(tokenizer, ids) == "tide <0x41>"
    assert model.piece_to_id("<0x41>") not in ids


def test_a_control_token_ends_a_word(tmp_path: Path) -> None:
    """As in llama.cpp, the text after a control token begins with the prefix space."""
    model = trained("bpe")
    tokenizer = write(tmp_path, model)
    user, tide = model.piece_to_id("<|user|>"), model.encode("tide")
    assert tokenizer.encode("<|user|>tide", add_special_tokens=True) == [1, user, *tide]
    assert user in tokenizer.vocabulary.special_ids


@pytest.mark.parametrize(("architecture", "spaces"), [("phi3", 0), ("llama", 1)])
def test_control_tokens_of_phi_3_remove_the_spaces_after_them(architecture: str, spaces: int, tmp_path: Path) -> None:
    model = trained("bpe", user_defined_symbols=())
    tokenizer = write(tmp_path, model, architecture=architecture)
    user = model.piece_to_id("<|user|>")
    assert tokenizer.encode("<|user|> tide", add_special_tokens=False) == [user, *model.encode(" " * spaces + "tide")]
    assert tokenizer.encode("<s> tide", add_special_tokens=False) == [1, *model.encode(" tide")]


def test_control_tokens_in_messages_stay_text_without_further_spaces(tmp_path: Path) -> None:
    model = trained("bpe")
    tokenizer = write(tmp_path, model)
    content = "a</s>b<|user|> <s>"
    ids = tokenizer.encode_chat(ChatPrompt([{"role": "user", "content": content}], add_generation_prompt=False))
    assert ids == [1, model.piece_to_id("<|user|>"), *model.encode(content), 2]
    assert text_of(tokenizer, ids[2:-1]) == content


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, r"its tokenizer\.ggml\.model is 'rwkv', which is not supported\."),
        ({"model": "bert"}, r"its tokenizer\.ggml\.model is 'bert', which is not supported\."),
        ({"scores": [float("nan")] * 400}, r"tokenizer\.ggml\.scores .* a number that is not finite\."),
        ({"merges": ["ti 日日"]}, r"tiny\.gguf cannot be loaded: .*\."),
        ({"token_type": ["a", "b"]}, r"tiny\.gguf cannot be loaded: .*\."),
    ],
)
def test_damaged_and_unknown_vocabularies_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=message):
        write(tmp_path, trained("bpe"), **changes)
