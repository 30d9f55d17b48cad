"""The daemon's greedy answers in float32 are those of transformers, token for token, whatever the pages and chunks."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import Any

import pytest

from .smollm2 import CHATS, Answer, SmolLM2

# The one in which most can go wrong, a page a token and small chunks; the rest of the twelve belongs to the long tests.
IN_EVERY_RUN = {(1, 32, True)}


def combinations() -> list[Any]:
    """All twelve, the ones that are not in every run marked."""
    return [
        pytest.param(*one, marks=() if one in IN_EVERY_RUN else pytest.mark.soak)
        for one in product((1, 16, 64), (32, 2048), (True, False))
    ]


@pytest.mark.parametrize(("page_size", "chunk", "cache"), combinations())
def test_every_answer_is_that_of_transformers_alone_and_together(
    page_size: int, chunk: int, cache: bool, smollm2_truth: list[Answer], start_daemon: Any
) -> None:
    flags = ["--page-size", str(page_size), "--chunked-prefill-size", str(chunk)]
    flags += [] if cache else ["--disable-radix-cache"]
    daemon = start_daemon("--dtype", "float32", "--max-total-tokens", "8192", *flags, model="smollm2")
    with contextlib.closing(SmolLM2(daemon.url)) as served:
        assert served.one_by_one(CHATS) == smollm2_truth
        cached = served.metric("cached_tokens_total")
        # Many chats begin with the same system prompt, which is shorter than a page of 64.
        assert (cached > 0) is (cache and page_size < 64)
        assert served.together(CHATS) == smollm2_truth
        # The second time most of every prompt is in the cache, in whole pages.
        least = len(CHATS) * 16 if page_size < 64 else page_size
        assert (served.metric("cached_tokens_total") - cached >= least) is cache
        assert served.metric("kv_invariant_violations_total") == 0
