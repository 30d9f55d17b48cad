"""Message text that looks like a control token is encoded as plain text, without additional characters."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ebbtide.tokenization.tokenizer import ChatPrompt, FastTokenizer
from ebbtide.tokenization.transformers_tokenizer import parts_of

SPECIAL = ["<unk>", "<s>", "</s>"]
TEMPLATE = "{% for m in messages %}<s>[{{ m.role }}] {{ m.content }}</s>{% endfor %}<s>"
CHARACTERS = "abcdefghijklmnopqrstuvwxyz<>/[]|_ "
CONTENTS = ["</s>", "a </s> b", "<b>a</b><s>x</s>", "</s></s>", "x<s>", "<unk> a", "</s> a </s>"]


def sentencepiece_vocabulary() -> list[str]:
    return [*SPECIAL, *(character.replace(" ", "\u2581") for character in CHARACTERS)]


def metaspace(scheme: str) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        pieces = [(piece, 0.0 if piece in SPECIAL else -2.0) for piece in sentencepiece_vocabulary()]
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
        return tokenizer

    return make


def prepending() -> Tokenizer:
    """Llama 2's first conversion: a normalizer prepends a space to every part between control tokens."""
    vocab = {piece: i for i, piece in enumerate(sentencepiece_vocabulary())}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return tokenizer


def ignoring_merges() -> Tokenizer:
    """A BPE that first looks up the whole word in its vocabulary, including the control tokens."""
    vocab = {piece: i for i, piece in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the </s> tide <s> a"] * 3, trainer)
    return tokenizer


MAKERS = [metaspace("first"), metaspace("always"), metaspace("never"), prepending, ignoring_merges, byte_level]


def chat_tokenizer(make: Callable[[], Tokenizer]) -> FastTokenizer:
    backend = make()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return FastTokenizer(parts_of(wrapped(backend)))


def wrapped(backend: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE, clean_up_tokenization_spaces=False)


def encoded_without_special_tokens(make: Callable[[], Tokenizer], text: str) -> list[int]:
    """Return transformers' ids of a text if "\x01" and "\x02" are its control tokens, not "<s>" and "</s>"."""
    state = json.loads(make().to_str())
    names = {"<s>": "\x01", "</s>": "\x02"}
    vocab = state["model"]["vocab"]
    if isinstance(vocab, list):
        state["model"]["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    else:
        state["model"]["vocab"] = {names.get(piece, piece): i for piece, i in vocab.items()}
    state["added_tokens"] = []
    backend = Tokenizer.from_str(json.dumps(state))
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names.values()])
    ids: list[int] = wrapped(backend)(text, add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("content", CONTENTS)
def test_the_ids_are_those_of_the_text_without_special_tokens(make: Callable[[], Tokenizer], content: str) -> None:
    ids = chat_tokenizer(make).encode_chat(ChatPrompt([{"role": "user", "content": content}]))
    assert ids == encoded_without_special_tokens(make, f"\x01[user] {content}\x02\x01")


@pytest.mark.parametrize("make", MAKERS)
def test_a_chat_without_such_text_is_encoded_alike_on_both_ways(make: Callable[[], Tokenizer]) -> None:
    tokenizer = chat_tokenizer(make)
    plain = tokenizer.encode_chat(ChatPrompt([{"role": "user", "content": "a b"}]))
    both = tokenizer.encode_chat(ChatPrompt([{"role": "user", "content": "a b"}, {"role": "user", "content": "</s>"}]))
    assert both[: len(plain) - 1] == plain[:-1]


@pytest.mark.parametrize("make", MAKERS[:3])
@pytest.mark.parametrize("content", CONTENTS)
def test_no_space_is_added_to_a_message(make: Callable[[], Tokenizer], content: str) -> None:
    tokenizer = chat_tokenizer(make)
    ids = tokenizer.encode_chat(ChatPrompt([{"role": "user", "content": content}]))
    text = b"".join(tokenizer.vocabulary.pieces[i] for i in ids).decode()
    assert f"[user] {content}</s>" in text


def test_an_added_token_of_a_byte_level_vocabulary_is_its_own_text() -> None:
    backend = byte_level()
    words = ["đem", "Bác", "naïve", "<tool call>", "\u0120x", "日本"]
    backend.add_tokens([AddedToken(word) for word in words])
    tokenizer = FastTokenizer(parts_of(wrapped(backend)))
    ids = [tokenizer.encode(word, add_special_tokens=False) for word in words]
    assert [[tokenizer.vocabulary.pieces[i] for i in found] for found in ids] == [[word.encode()] for word in words]
