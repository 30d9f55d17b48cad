"""SmolLM2's answers when requests are retracted again and again: the same in float32, counted in bfloat16."""

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
    """A daemon with SmolLM2; when it is no longer asked, every retraction must be accounted for."""
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


@pytest.mark.soak
def test_bfloat16_says_how_many_answers_a_retraction_changes(start_daemon: Any) -> None:
    """Prints the numbers of docs/benchmarks.md. Restored K/V is bit-equal, so it must change no answer."""
    # An answer with one retraction takes 65 steps; half an answer before moves it into the middle of each.
    half = {"max_tokens": NUM_TOKENS // 2}
    once = ("--test-retract-interval", str(NUM_TOKENS + 1), "--max-retractions", "-1")
    with serving(start_daemon, "bfloat16", "--disable-radix-cache") as served:
        alone = served.one_by_one(CHATS)
        again = served.one_by_one(CHATS)
        together = served.together(CHATS)
    changed = {"alone, once more": again, "all 16 together": together}
    for name, flags in {
        "recompute": ("--disable-radix-cache",),
        "restore": ("--disable-radix-cache", *RESTORE),
    }.items():
        with serving(start_daemon, "bfloat16", *once, *flags) as served:
            served.answer(CHATS[0], **half)
            changed[f"alone, {name}"] = served.one_by_one(CHATS)
            retracted = served.metric("num_retracted_requests_total")
            restored = served.metric("kv_restored_tokens_total")
            print(f"\n{name}: {retracted:.0f} retractions, {restored:.0f} tokens restored")
    for name, answers in changed.items():
        print(f"{name}: {sum(a != b for a, b in zip(answers, alone, strict=True))} of {len(CHATS)} answers changed")
    assert again == alone
    assert changed["alone, restore"] == alone
