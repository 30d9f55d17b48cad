from __future__ import annotations

import pytest

from ebbtide.server.api.echo import echo_of_ids, echo_of_text, incomplete_character
from ebbtide.tokenization.vocabulary import SIM_EOS, Vocabulary, sim_vocabulary

# Like a SentencePiece tokenizer: a BOS token, and a leading space that is not part of the text.
PIECES = Vocabulary(pieces=[b"<s>", b" Hello", b" world", b"!"], special_ids=[0], eos_ids=[], strips_first_space=True)


@pytest.mark.parametrize("text", ["plain", "größe 日本語", "e\u0301 🌊", "a\u2028b"])
def test_an_echoed_text_is_unchanged_and_each_byte_has_the_offset_of_its_character(text: str) -> None:
    echo = echo_of_text(text, [*text.encode()], sim_vocabulary())
    assert echo.text == text
    assert echo.offsets == [index for index, character in enumerate(text) for _ in character.encode()]


def test_a_prefix_that_the_tokenizer_adds_is_not_echoed() -> None:
    echo = echo_of_text("Hello world!", [0, 1, 2, 3], PIECES)
    assert (echo.text, echo.offsets) == ("Hello world!", [0, 0, 5, 11])


def test_ids_lose_the_space_that_their_tokenizer_adds() -> None:
    echo = echo_of_ids([0, 1, 2, 3], PIECES, hidden=[0], is_complete=True)
    assert (echo.text, echo.offsets) == ("Hello world!", [0, 0, 5, 11])


def test_offsets_never_leave_the_text() -> None:
    """A tokenizer may change the text before it encodes it."""
    echo = echo_of_text("Hi", [1, 2], PIECES)
    assert echo.offsets == [0, 0]
    assert echo_of_text("Hello world! and more", [1, 2, 3], PIECES).offsets == [0, 6, 12]


def test_control_tokens_have_text_unless_they_are_hidden() -> None:
    ids = [97, SIM_EOS, 98]
    assert echo_of_ids(ids, sim_vocabulary(), hidden=[SIM_EOS], is_complete=True).text == "ab"
    assert echo_of_ids(ids, sim_vocabulary(), hidden=[], is_complete=True).offsets == [0, 1, 8]


def test_half_a_character_is_left_to_the_answer_if_there_is_one() -> None:
    ids = [*b"a", *"🌊".encode()[:2]]
    assert echo_of_ids(ids, sim_vocabulary(), hidden=[], is_complete=False).text == "a"
    assert echo_of_ids(ids, sim_vocabulary(), hidden=[], is_complete=True).text == "a\ufffd"
    assert incomplete_character(ids, sim_vocabulary()) == "🌊".encode()[:2]
    assert incomplete_character([*"🌊".encode()], sim_vocabulary()) == b""
