"""The memory of recurrent states: slots of layers whose state has a fixed size for each request.

The module refers to slots by number and does not know their owners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from ebbtide.errors import PlanError
from ebbtide.plan import PlanItem

from ..transfers import host_tensor


@dataclass(frozen=True, slots=True)
class StateShape:
    """The shape of one request's state: ``num_layers`` tensors of the shape ``size``.

    Attributes:
        dtype: their element type; None for that of the model.
    """

    num_layers: int
    size: tuple[int, ...]
    dtype: torch.dtype | None = None

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Return the number of bytes of one state. dtype: the element type of the model."""
        return self.num_layers * prod(self.size) * (self.dtype or dtype).itemsize


@dataclass(frozen=True, slots=True)
class StateInputs:
    """The slots of a step's N items, S of which are copied.

    Attributes:
        sources: int64 [N], the slot from which each item continues.
        working: int64 [N], the slot that gets each item's state.
        saved: int64 [S], the items whose states are copied.
        saves: int64 [S], the slots that get the copies.
    """

    sources: Tensor
    working: Tensor
    saved: Tensor
    saves: Tensor


@dataclass(frozen=True, slots=True)
class BatchStates:
    """The states of one forward pass.

    Attributes:
        data: as in ``StateMemory``.
        inputs: the slots of the items.
        after: the states after the items, one tensor [N, *size] per layer, in the order of the layers.
    """

    data: Tensor
    inputs: StateInputs
    after: list[Tensor] = field(default_factory=list)

    def advance(self, after: Tensor) -> None:
        """Record the states of the next layer after the items, [N, *size]."""
        self.after.append(after)

    def before(self) -> Tensor:
        """Return the states of the next layer before the items, [N, *size]."""
        return self.data[len(self.after)].index_select(0, self.inputs.sources)


class StateMemory:
    """Stores ``num_slots`` states, and one that is always zero: the state before the first token.

    Attributes:
        data: [num_layers, num_slots + 1, *size]; the last slot is zero.
        num_slots: number of slots that plans name.
    """

    def __init__(self, shape: StateShape, num_slots: int, num_rows: int, *, dtype: torch.dtype, device: torch.device):
        self.data = torch.zeros(shape.num_layers, num_slots + 1, *shape.size, dtype=shape.dtype or dtype, device=device)
        self.num_slots = num_slots
        self._working = [-1] * num_rows

    def stage(self, items: Sequence[PlanItem], pool: int) -> StateInputs:
        """Return the slots of a step, on the host. pool: index of the pool of states in ``RunnerInfo.pools``.

        Raises PlanError if an item has no slot or names one that does not exist. The call can be repeated.
        """
        sources, working, saved, saves = [], [], [], []
        for number, item in enumerate(items):
            slot = self._slot_of(item, pool)
            load = None if item.states is None else item.states.load
            sources.append(slot if load is None else self.num_slots if load == -1 else load)
            working.append(slot)
            if item.states is not None and item.states.save is not None:
                saved.append(number)
                saves.append(item.states.save)
        loads = [item.states.load for item in items if item.states is not None and item.states.load not in (None, -1)]
        named = [*working, *saves, *(load for load in loads if load is not None)]
        if not 0 <= min(named) <= max(named) < self.num_slots:
            raise PlanError(f"A slot is outside 0..{self.num_slots - 1}: loads {loads}, working {working}.")
        return StateInputs(*(host_tensor(slots, np.int64) for slots in (sources, working, saved, saves)))

    def batch(self, inputs: StateInputs) -> BatchStates:
        """Return the states for a forward pass with uploaded inputs."""
        return BatchStates(self.data, inputs)

    def commit(self, states: BatchStates) -> None:
        """Store the states after the items. Call it last: a step that raises must leave all states unchanged."""
        for layer, after in zip(self.data, states.after, strict=True):
            layer[states.inputs.working] = after
            if len(states.inputs.saves):
                layer[states.inputs.saves] = after[states.inputs.saved]

    def _slot_of(self, item: PlanItem, pool: int) -> int:
        """Return the item's working slot, and record it if it is new."""
        _, slots = item.write_to(pool)
        if item.init is not None:
            if len(slots) != 1 or item.states is None or item.states.load is None:
                raise PlanError(f"Row {item.row} has no slot, or no state to start from.")
            self._working[item.row] = slots[0]
        elif slots:
            raise PlanError(f"Row {item.row} gets another slot while it runs.")
        return self._working[item.row]
