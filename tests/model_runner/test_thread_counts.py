"""The number of threads follows the times of the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from ebbtide.model_runner.thread_counts import LONGEST_PAUSE, ThreadCounts


def run(counts: ThreadCounts, num_tokens: int, time_of: Callable[[int], float], steps: int) -> Counter[int]:
    """Run steps whose time follows from the number of threads; returns how often each number was used."""
    used: Counter[int] = Counter()
    for _ in range(steps):
        count = counts.choose(num_tokens)
        used[count] += 1
        counts.record(num_tokens, time_of(count))
    return used


def free_cores(count: int) -> float:
    return 1.0 / count


def busy_cores(count: int) -> float:
    """The duration of a step if each additional thread makes it slower."""
    return 1.0 + count


@pytest.mark.parametrize("most", [1, 2, 3, 8, 15])
def test_all_threads_are_used_while_they_are_faster(most: int) -> None:
    used = run(ThreadCounts(most), 1, free_cores, 5000)
    assert used[most] > 4900
    assert max(used) == most


@pytest.mark.parametrize("most", [2, 3, 8, 15])
def test_one_thread_is_used_while_the_others_wait_and_all_when_they_are_free_again(most: int) -> None:
    counts = ThreadCounts(most)
    run(counts, 1, busy_cores, 500)
    assert run(counts, 1, busy_cores, 1000)[1] > 950
    run(counts, 1, free_cores, 6 * LONGEST_PAUSE)
    assert run(counts, 1, free_cores, 1000)[most] > 950


def test_sizes_of_steps_are_separate() -> None:
    counts = ThreadCounts(4)
    for _ in range(30):
        run(counts, 1, busy_cores, 20)
        run(counts, 256, free_cores, 20)
    assert run(counts, 1, busy_cores, 100)[1] > 90
    assert run(counts, 300, free_cores, 100)[4] > 90


def test_a_small_difference_changes_nothing() -> None:
    used = run(ThreadCounts(2), 1, lambda count: 1.0 if count == 2 else 0.95, 2000)
    assert used[2] > 1900
