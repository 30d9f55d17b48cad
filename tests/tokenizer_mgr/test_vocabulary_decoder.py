"""Decoding token ids."""

from __future__ import annotations

import pytest

from ebbtide.tokenization.vocabulary import Vocabulary, sim_vocabulary
from ebbtide.tokenizer_mgr.vocabulary_decoder import VocabularyDecoder

SMILE = list("😀".encode())


@pytest.mark.parametrize(
    ("ids", "skip", "text"),
    [
        ([], True, ""),
        ([104, 105], True, "hi"),
        ([104, 256, 105], True, "hi"),
        ([104, 256, 105], False, "h<|end|>i"),
        (SMILE, True, "😀"),
        ([*SMILE[:2], 256, *SMILE[2:]], True, "😀"),
        (SMILE[:2], True, "\ufffd"),
    ],
)
def test_bytes_are_joined_before_they_are_read(ids: list[int], skip: bool, text: str) -> None:
    assert VocabularyDecoder(sim_vocabulary()).decode(ids, skip_special_tokens=skip) == text


def test_a_sentencepiece_text_has_no_space_in_front_and_its_tokens_have() -> None:
    words = VocabularyDecoder(Vocabulary([b" a", b" b", b""], [], [], strips_first_space=True))
    assert words.decode([0, 1, 2], skip_special_tokens=True) == "a b"
    assert words.decode([1], skip_special_tokens=True, begins=False) == " b"
    assert words.decode([99], skip_special_tokens=True) == "", "an embedding without a token"
