import math

import pytest

from ebbtide.detokenizer.pieces import Pieces
from ebbtide.messages import TextAlternative, TokenLogprob
from ebbtide.tokenization.vocabulary import SIM_EOS, Vocabulary, sim_vocabulary


def test_special_tokens_have_bytes_only_when_they_are_not_skipped() -> None:
    pieces = Pieces(sim_vocabulary())
    assert pieces.of(SIM_EOS, skip_special=True) == b""
    assert pieces.of(SIM_EOS, skip_special=False) == b"<|end|>"


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    pieces = Pieces(Vocabulary(pieces=[b"a"], special_ids=[7], eos_ids=[7]))
    assert pieces.joined([0, 1, 7, -1, 0], skip_special=True) == b"aa"


def test_a_logprob_entry_carries_text_and_exact_bytes() -> None:
    entry = Pieces(sim_vocabulary()).logprob(0xE2, TokenLogprob(-0.5, [65, 0xE2], [-0.1, -0.5]))
    assert entry.chosen == TextAlternative("\ufffd", b"\xe2", -0.5, 0xE2)
    assert entry.top == [TextAlternative("A", b"A", -0.1, 65), entry.chosen]


def test_impossible_tokens_keep_their_minus_infinity() -> None:
    assert Pieces(sim_vocabulary()).logprob(65, TokenLogprob(-math.inf)).chosen.logprob == -math.inf


def test_inconsistent_entries_raise() -> None:
    pieces = Pieces(sim_vocabulary())
    with pytest.raises(ValueError, match="log-probability of token 65 is NaN"):
        pieces.logprob(65, TokenLogprob(math.nan))
    with pytest.raises(ValueError, match="zip"):
        pieces.logprob(65, TokenLogprob(-1.0, [1, 2], [-1.0]))
