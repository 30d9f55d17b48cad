"""Confines an exception in a step to the items that cause it. The module does not import torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ebbtide.plan import ItemFailure, PlanItem

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Computed(Generic[T]):
    """Items that were computed together.

    Attributes:
        numbers: the indices of the items in the plan, ascending.
        value: the result of the computation.
    """

    numbers: list[int]
    value: T


def compute_isolated(
    items: Sequence[PlanItem], compute: Callable[[list[PlanItem]], T], *, fatal: tuple[type[Exception], ...] = ()
) -> tuple[list[Computed[T]], list[ItemFailure]]:
    """Compute all items together. After an exception, compute each item alone; an item fails only if it raises again.

    If an exception occurs only for all items together, for example because of too little memory, no item fails.

    Args:
        compute: computes some of the items; must be repeatable after an exception.
        fatal: classes of the exceptions that no single item can cause; they are re-raised.
    """
    try:
        return [Computed(list(range(len(items))), compute(list(items)))], []
    except fatal:
        raise
    except Exception as error:
        if len(items) == 1:
            return [], [item_failure(0, items[0], error)]
        log.warning("A step with %d items raised %s. Each item is now computed alone.", len(items), describe(error))
    parts: list[Computed[T]] = []
    failures: list[ItemFailure] = []
    for number, item in enumerate(items):
        try:
            parts.append(Computed([number], compute([item])))
        except fatal:
            raise
        except Exception as error:
            failures.append(item_failure(number, item, error))
    return parts, failures


def item_failure(number: int, item: PlanItem, error: Exception) -> ItemFailure:
    """Log the traceback of ``error``, which an item raised, and return the failure of the item."""
    log.error("The item of row %d raised an exception.", item.row, exc_info=error)
    return ItemFailure(number, describe(error))


def describe(error: Exception) -> str:
    """Return the class name and the first line of the message of an exception."""
    line = str(error).partition("\n")[0][:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
