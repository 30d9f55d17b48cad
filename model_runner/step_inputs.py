"""The inputs of one step, staged on the host before they are copied to the device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .kv.page_table import PageWrites, TokenInputs
from .kv.state_memory import StateInputs
from .sampling.row_state import RowInputs
from .sampling.sampler import SamplingInputs


@dataclass(frozen=True, slots=True)
class StepInputs:
    """All tensors that one step copies to the device, in one copy.

    Attributes:
        pages: the changes of the page tables, one element per pool.
        tokens: the tokens of the items.
        rows: the inputs of the sampling state of each row that starts in this step.
        sampling: the sampling inputs of the items that sample.
        targets: int64 [P], the prompt tokens whose log-probabilities are requested, in item order; None if there are
            none.
        states: the slots of the recurrent states; None for a model without them.
    """

    pages: list[PageWrites]
    tokens: TokenInputs
    rows: list[RowInputs]
    sampling: SamplingInputs
    targets: Tensor | None
    states: StateInputs | None = None
