"""Which check notices a seeded bug first."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import ParamSpec

import pytest

from ebbtide.errors import InvariantViolation, PlanError
from ebbtide.scheduler.core import Scheduler

Bug = Callable[[pytest.MonkeyPatch], None]
STUCK = ("stuck", "no progress", "was expected to be over")


class Witness(Enum):
    """A check, as ``docs/mutations.md`` names it."""

    PLANNER = "planner, when it builds an item"
    PLAN_AUDIT = "audit of the plan, before the step runs"
    EQUATION = "conservation equation"
    SWEEP = "ledger sweep after the step"
    LEDGER_AUDIT = "full ledger audit when idle"
    LEDGER_MOVE = "ledger, when the page changes its owner"
    FREE_LIST = "allocator, when pages are taken"
    ROWS = "row check"
    RESTORE = "host tier, when it restores a copy"
    TREE = "tree check when idle"
    WINDOW = "prefix tree, when it locks or reads the pages of a window"
    RUNNER = "runner, which rejects the plan"
    TEXT = "text equality"
    ONE_END = "tokens after the end"
    NO_PROGRESS = "no progress"
    REFUSAL = "turn accepted or refused differently than by the reference"
    REUSE = "cached tokens of a turn"
    SESSION_BOOKS = "session counters after closing all"


# The innermost function of the traceback that is listed here is the check that noticed the bug.
CHECKS = {
    "prefill": Witness.PLANNER,
    "_make_room_elsewhere": Witness.PLANNER,
    "audit_plan": Witness.PLAN_AUDIT,
    "restore": Witness.RESTORE,
    "_unbalanced": Witness.EQUATION,
    "self_check_during_busy": Witness.SWEEP,
    "_check_full_pool": Witness.LEDGER_AUDIT,
    "_check_swa_pool": Witness.LEDGER_AUDIT,
    "_check_mamba_pool": Witness.LEDGER_AUDIT,
    "_path": Witness.WINDOW,
    "relock": Witness.WINDOW,
    "move": Witness.LEDGER_MOVE,
    "take": Witness.FREE_LIST,
    "_check_req_pool": Witness.ROWS,
    "_check_tree_cache": Witness.TREE,
    "assert_same": Witness.TEXT,
    "_take": Witness.ONE_END,
    "compare": Witness.TEXT,
    "turn": Witness.REFUSAL,
    "check_reuse": Witness.REUSE,
    "close_all": Witness.SESSION_BOOKS,
}


P = ParamSpec("P")
HAND_MADE: dict[str, Witness] = {}  # by name of the test


def noticed_by(witness: Witness) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorate a test that injects a fault: ``witness`` must be the first check that detects it."""

    def decorate(test: Callable[P, None]) -> Callable[P, None]:
        HAND_MADE[test.__name__] = witness

        @wraps(test)
        def checked(*args: P.args, **kwargs: P.kwargs) -> None:
            seen: list[InvariantViolation] = []
            original = Scheduler._violated

            def violated(self: Scheduler, violation: InvariantViolation, *, everybody: bool) -> None:
                seen.append(violation)
                original(self, violation, everybody=everybody)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Scheduler, "_violated", violated)
                test(*args, **kwargs)
            assert seen, "no check noticed the fault"
            found = witness_of(seen[0])
            assert found is witness, f"{found} noticed it: {seen[0]}"

        return checked

    return decorate


def noticed(bug: Bug, play: Callable[[], None]) -> tuple[Exception, Witness | None]:
    """Play with ``bug`` in the scheduler. Returns the error and the check that raised it, if any."""
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        try:
            play()
        except Exception as error:
            return error, witness_of(error)
    raise AssertionError(f"{bug.__name__} was not noticed")


def witness_of(error: Exception) -> Witness | None:
    if isinstance(error, PlanError):
        return Witness.RUNNER
    if any(word in str(error) for word in STUCK):
        return Witness.NO_PROGRESS
    if not isinstance(error, InvariantViolation | AssertionError):
        return None  # the scheduler crashed, or the seeded bug itself is broken
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((CHECKS[frame.name] for frame in frames if frame.name in CHECKS), None)
