"""The page numbers of a plan's copies, checked. Knows neither devices nor what a page holds. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.errors import PlanError
from ebbtide.plan import PageCopies


@dataclass(frozen=True, slots=True)
class PageMoves:
    """Page ``sources[i]`` goes to page ``targets[i]``; no target comes twice."""

    sources: list[int]
    targets: list[int]


def checked_moves(copies: PageCopies, *, num_pages: int, num_host_pages: int) -> tuple[PageMoves, PageMoves]:
    """What goes to the host and what comes back. PlanError for a number outside, or two copies onto one page."""
    return (
        _moves(copies.to_host, "to the host", num_pages, num_host_pages),
        _moves(copies.to_device, "to the device", num_host_pages, num_pages),
    )


def _moves(flat: Sequence[int], way: str, num_sources: int, num_targets: int) -> PageMoves:
    if len(flat) % 2:
        raise PlanError(f"The copies {way} are not pairs: there are {len(flat)} numbers.")
    moves = PageMoves(list(flat[::2]), list(flat[1::2]))
    for number in range(len(moves.sources)):
        source, target = moves.sources[number], moves.targets[number]
        if not (0 <= source < num_sources and 0 <= target < num_targets):
            raise PlanError(
                f"A copy {way} from page {source} of {num_sources} to page {target} of {num_targets} reaches outside."
            )
    if len(set(moves.targets)) < len(moves.targets):
        raise PlanError(f"Two copies {way} of one plan go to the same page.")
    return moves
