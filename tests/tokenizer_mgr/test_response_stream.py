"""When a response stream wakes its reader."""

from __future__ import annotations

import asyncio

import pytest

from ebbtide.errors import Rejected
from ebbtide.messages import TextAlternative, TextItem, TextLogprob
from ebbtide.tokenizer_mgr.response_stream import ResponseStream

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def score(token: int) -> TextItem:
    entry = TextLogprob(TextAlternative(chr(token), bytes([token]), -1.0, token))
    return TextItem("a", "", [], 0, prompt=[entry], cached_tokens=0)


async def test_scores_of_the_prompt_wait_for_the_first_token() -> None:
    answer = ResponseStream(["a", "b"], 0.0, lambda _: None)
    answer.add(0, score(97))
    assert await answer.next_deltas(timeout_s=0.0) == []
    answer.add(1, TextItem("b", "x", [120], 1))
    [other] = await answer.next_deltas()
    assert (other.index, other.prompt) == (1, [])
    answer.add(0, score(98))
    answer.add(0, TextItem("a", "", [121], 1))
    [first] = await answer.next_deltas()
    assert [entry.chosen.token for entry in first.prompt] == ["a", "b"]
    assert (first.tokens, first.cached_tokens) == ([121], 0)


async def test_an_end_without_a_token_brings_the_scores() -> None:
    answer = ResponseStream(["a"], 0.0, lambda _: None)
    answer.add(0, score(97))
    assert answer.add(0, TextItem("a", "", [], 0, finish="length"))
    [delta] = await answer.all_deltas()
    assert (len(delta.prompt), delta.finish, answer.done) == (1, "length", True)


async def test_a_failure_replaces_prompt_logprobs_without_output() -> None:
    answer = ResponseStream(["a"], 0.0, lambda _: None)
    answer.add(0, score(97))
    answer.add(0, TextItem("a", "", [], 0, finish="abort"))
    reader = asyncio.ensure_future(answer.next_deltas())
    answer.fail(Rejected("no room", status=500))
    with pytest.raises(Rejected, match="no room"):
        await reader
