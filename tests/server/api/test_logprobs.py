from __future__ import annotations

import math
from itertools import pairwise

import pytest

from ebbtide.messages import TextAlternative, TextLogprob
from ebbtide.server.api.logprobs import (
    CompletionLogprobs,
    as_id,
    as_text,
    chat_logprobs,
    echoed_logprobs,
    joined_lists,
    prompt_logprobs,
)


def one(token: int, logprob: float = -1.0) -> TextAlternative:
    raw = bytes([token])
    return TextAlternative(raw.decode("utf-8", "replace"), raw, logprob, token)


def entries(data: bytes) -> list[TextLogprob]:
    return [TextLogprob(one(value)) for value in data]


def test_parts_of_characters_are_named_by_their_bytes() -> None:
    assert [as_text(one(token)) for token in "aß".encode()] == ["a", "bytes:\\xc3", "bytes:\\x9f"]
    assert as_id(one(97)) == "token_id:97"


@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2, 3], [3, 5]])
def test_offsets_do_not_depend_on_how_the_answer_is_cut(cuts: list[int]) -> None:
    data = "aß🌊b".encode()
    lists = CompletionLogprobs(as_text, offset=10)
    bounds = [0, *cuts, len(data)]
    parts = [lists.next_lists(entries(data[a:b])) for a, b in pairwise(bounds)]
    whole = parts[0]
    for part in parts[1:]:
        whole = joined_lists(whole, part)
    assert whole["text_offset"] == [10, 11, 11, 12, 12, 12, 12, 13]


def test_hidden_control_tokens_take_no_room() -> None:
    entry = TextLogprob(TextAlternative("<|end|>", b"<|end|>", -1.0, 256))
    assert CompletionLogprobs(as_text, hidden=[256]).next_lists([entry, *entries(b"a")])["text_offset"] == [0, 0]
    assert CompletionLogprobs(as_text).next_lists([entry, *entries(b"a")])["text_offset"] == [0, 7]


def test_half_a_character_of_the_prompt_counts_once_when_the_answer_completes_it() -> None:
    wave = "🌊".encode()
    completed = CompletionLogprobs(as_text, incomplete=wave[:2]).next_lists(entries(wave[2:] + b"ab"))
    assert completed["text_offset"] == [0, 0, 1, 2]
    left = CompletionLogprobs(as_text, incomplete=wave[:2]).next_lists(entries(b"ab"))
    assert left["text_offset"] == [0, 1]


def test_the_first_prompt_token_has_null_and_the_others_the_asked_number_of_alternatives() -> None:
    scores = [TextLogprob(one(98, -3.0), [one(99, -0.5), one(98, -3.0), one(97, -4.0)], 2)]
    lists = echoed_logprobs(one(97), scores, [0, 1], num_top=1, name=as_text)
    assert lists == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -3.0],
        "top_logprobs": [None, {"c": -0.5, "b": -3.0}],
        "text_offset": [0, 1],
    }
    assert prompt_logprobs(scores, 2) == [
        None,
        {
            "98": {"logprob": -3.0, "rank": 2, "decoded_token": "b"},
            "99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"},
        },
    ]


def test_impossible_tokens_are_valid_json_in_every_format() -> None:
    never = [TextLogprob(one(98, -math.inf), [one(99, 0.0), one(98, -math.inf)], 7)]
    assert prompt_logprobs(never, 1)[1] == {
        "98": {"logprob": -9999.0, "rank": 7, "decoded_token": "b"},
        "99": {"logprob": 0.0, "rank": 1, "decoded_token": "c"},
    }
    assert chat_logprobs(never)["content"][0]["logprob"] == -9999.0
    assert CompletionLogprobs(as_text).next_lists(never)["token_logprobs"] == [-9999.0]
