"""The daemon's greedy answers in float32 equal those of transformers for all sizes of pages and chunks."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import Any

import pytest

from .smollm2 import CHATS, Answer, SmolLM2, generated_answers, shortened

# The combination with the most page boundaries and chunks. The long tests run all twelve, with every chat alone and
# twice the tokens.
IN_EVERY_RUN = (1, 32, True)
ALONE = slice(0, None, 8)
NUM_TOKENS = 32


def test_answers_are_those_of_transformers_alone_and_together(smollm2_truth: list[Answer], start_daemon: Any) -> None:
    check(*IN_EVERY_RUN, shortened(smollm2_truth, NUM_TOKENS), start_daemon, ALONE)


@pytest.mark.soak
@pytest.mark.parametrize(("page_size", "chunk", "cache"), [*product((1, 16, 64), (32, 2048), (True, False))])
def test_every_answer_is_that_of_transformers_alone_and_together(
    page_size: int, chunk: int, cache: bool, smollm2_truth: list[Answer], start_daemon: Any
) -> None:
    check(page_size, chunk, cache, smollm2_truth, start_daemon, slice(None))


def check(page_size: int, chunk: int, cache: bool, truth: list[Answer], start_daemon: Any, alone: slice) -> None:
    """Ask for the chats in ``alone`` one by one, then for all chats at once."""
    flags = ["--page-size", str(page_size), "--chunked-prefill-size", str(chunk)]
    flags += [] if cache else ["--disable-radix-cache"]
    daemon = start_daemon("--dtype", "float32", "--max-total-tokens", "8192", *flags, model="smollm2")
    with contextlib.closing(SmolLM2(daemon.url, len(truth[0].tokens))) as served:
        assert served.one_by_one(CHATS[alone]) == truth[alone]
        cached = served.metric("cached_tokens_total")
        # Many chats begin with the same system prompt, which is shorter than a page of 64.
        assert (cached > 0) is (cache and page_size < 64)
        assert served.together(CHATS) == truth
        # The second time, most of these prompts are in the cache, in whole pages.
        least = len(CHATS[alone]) * 16 if page_size < 64 else page_size
        assert (served.metric("cached_tokens_total") - cached >= least) is cache
        assert served.metric("kv_invariant_violations_total") == 0


@pytest.mark.soak
def test_the_recorded_answers_are_those_of_transformers(smollm2_truth: list[Answer]) -> None:
    assert generated_answers() == smollm2_truth
