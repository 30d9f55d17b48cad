"""SmolLM2 gives the same answers when requests are retracted repeatedly, in float32 and in bfloat16."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .smollm2 import CHATS, NUM_TOKENS, Answer, SmolLM2, shortened

RESTORE = ("--kv-offload-gb", "1")


@contextmanager
def serving(start_daemon: Any, dtype: str, *flags: str, num_tokens: int = NUM_TOKENS) -> Iterator[SmolLM2]:
    """A daemon with SmolLM2. At the end, every retraction must be accounted for."""
    daemon = start_daemon("--dtype", dtype, "--max-total-tokens", "8192", *flags, model="smollm2")
    with contextlib.closing(SmolLM2(daemon.url, num_tokens)) as served:
        yield served
        retracted = served.metric("num_retracted_requests_total")
        assert served.metric("num_resumed_requests_total") == retracted
        assert served.metric("num_retracted_reqs") == served.metric("kv_invariant_violations_total") == 0


@pytest.mark.parametrize(
    ("flags", "num_tokens", "num_alone"),
    [
        pytest.param((), 32, 1, id="recompute"),
        pytest.param(RESTORE, 32, 1, id="restore"),
        pytest.param((), NUM_TOKENS, 4, id="recompute, more", marks=pytest.mark.soak),
        pytest.param(RESTORE, NUM_TOKENS, 4, id="restore, more", marks=pytest.mark.soak),
        pytest.param(("--disable-radix-cache",), NUM_TOKENS, 4, id="recompute-all", marks=pytest.mark.soak),
    ],
)
def test_no_answer_changes_when_requests_are_retracted(
    flags: tuple[str, ...], num_tokens: int, num_alone: int, smollm2_truth: list[Answer], start_daemon: Any
) -> None:
    truth = shortened(smollm2_truth, num_tokens)
    with serving(start_daemon, "float32", "--test-retract-interval", "5", *flags, num_tokens=num_tokens) as served:
        assert served.together(CHATS) == truth
        retracted = served.metric("num_retracted_requests_total")
        assert retracted >= num_tokens // 5
        assert served.one_by_one(CHATS[-num_alone:]) == truth[-num_alone:]
        # Each of them is retracted up to the bound.
        assert served.metric("num_retracted_requests_total") == retracted + num_alone * 3
        restored = served.metric("kv_restored_tokens_total")
        if flags == RESTORE:
            assert restored > num_alone * 3 * 5
            assert served.metric("num_recomputed_tokens_total") < restored
        else:
            assert restored == 0
            assert served.metric("num_recomputed_tokens_total") > num_alone * 3 * 5


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="recompute"),
        pytest.param(RESTORE, id="restore"),
        pytest.param(
            ("--disable-radix-cache", "--chunked-prefill-size", "7"), id="small chunks", marks=pytest.mark.soak
        ),
        pytest.param(("--page-size", "1"), id="pages of 1", marks=pytest.mark.soak),
    ],
)
def test_no_answer_in_bfloat16_changes_in_any_batch_or_after_a_retraction(
    flags: tuple[str, ...], bfloat16_alone: list[Answer], start_daemon: Any
) -> None:
    with serving(start_daemon, "bfloat16", "--test-retract-interval", "5", *flags) as served:
        assert served.together(CHATS) == bfloat16_alone
        assert served.one_by_one(CHATS[-2:]) == bfloat16_alone[-2:]  # their prompts are cached now
        assert served.metric("num_retracted_requests_total") > 10


@pytest.fixture(scope="module")
def bfloat16_alone(start_shared_daemon: Any) -> list[Answer]:
    """The answers of a daemon that runs one chat at a time, caches nothing and retracts nothing."""
    with serving(start_shared_daemon, "bfloat16", "--disable-radix-cache") as served:
        return served.one_by_one(CHATS)
