"""The exchangeable decisions of a scheduler in one value: what ``ebbtide simulate`` compares, what the flags select."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ..memory.pool import Pool
from ..request import Request
from .admission import Admission, Judgement
from .new_token_ratio import NewTokenRatio, OutputLengths
from .policies import RETRACT_POLICIES, VictimPolicy


class AdmissionRule(Protocol):
    """Judges one candidate of a step after another."""

    def begin(self, running: Iterable[Request]) -> None:
        """A step begins with these requests running."""

    def admitted(self, req: Request) -> None:
        """``req`` runs from now on."""

    def judge(self, req: Request, *, extra_pages: int = 0) -> Judgement:
        """May ``req`` start? ``extra_pages`` more than the pool says would be usable."""


@dataclass(frozen=True, slots=True)
class Rules:
    """pick: who gives way. admission, ratio: who may start. to_front: where a retracted request waits.

    headroom: pages per running row that a retraction frees beyond the next step.
    """

    pick: VictimPolicy
    admission: Callable[[Pool, NewTokenRatio, OutputLengths], AdmissionRule] = Admission
    ratio: Callable[[float], NewTokenRatio] = NewTokenRatio
    to_front: bool = True
    headroom: int = 1


def rules_for(retract_policy: str) -> Rules:
    """Ebbtide's own rules with the victim policy of that name."""
    return Rules(RETRACT_POLICIES[retract_policy])
