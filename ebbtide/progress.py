"""Reports the progress of a start: the current stage, and the share of it that is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")

MIN_ADVANCE = 0.01  # minimum increase of the share between two reports


class Progress(Protocol):
    """Receives the stages of a start."""

    def __call__(self, text: str, share: float | None = None) -> None:
        """Report a stage.

        text: one line; the same for all reports of a stage.
        share: the part of the stage that is done, 0 to 1; None if it is unknown.
        """


def no_progress(text: str, share: float | None = None) -> None:
    """Ignore the progress."""


def counted(items: Iterable[T], size: Callable[[T], int], total: int, report: Callable[[float], None]) -> Iterator[T]:
    """Yield ``items``. Call ``report`` with the share of their sizes that the consumer has finished.

    total: the sum of all sizes. ``report`` is called at most 1 / MIN_ADVANCE times, with ascending shares up to 1.
    """
    done, reported = 0, 0.0
    for item in items:
        yield item
        done += size(item)
        share = min(done / max(total, 1), 1.0)
        if share - reported >= MIN_ADVANCE:
            reported = share
            report(share)
