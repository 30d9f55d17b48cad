"""The state pool of the simulated runner. A state is a hash over all tokens of a row, in order."""

from __future__ import annotations

import numpy as np

from ebbtide.errors import PlanError
from ebbtide.messages import PoolInfo
from ebbtide.plan import PlanItem

from .sim_pool import POISON, Slots

STEP_FACTOR = 0xD6E8FEB86659FD93  # odd: a state is multiplied by it before each token is added
MASK = (1 << 64) - 1


class SimStates:
    """The slots of the pool with index ``number``, and the working slot of each row.

    A state after n tokens is the sum of their slot values, each multiplied by a power of ``STEP_FACTOR``, modulo 2^64.
    A token that is missing, doubled or in the wrong place therefore changes it. States are computed from the slots as
    they were before the step and stored afterwards, so that a step can be computed again after an exception.
    """

    def __init__(self, info: PoolInfo, number: int, *, num_rows: int, max_tokens: int) -> None:
        """max_tokens: maximum number of tokens of one item."""
        self.slots: Slots = np.full(info.num_pages, POISON, dtype=np.uint64)
        self._number = number
        self._working = [-1] * num_rows
        powers = np.full(max_tokens + 1, STEP_FACTOR, dtype=np.uint64)
        powers[0] = 1
        self._powers: Slots = np.multiply.accumulate(powers)
        self._before: dict[int, int] = {}  # by row: the state before the item
        self._values: dict[int, Slots] = {}  # by row: the slot values of the item's tokens

    def prepare(self, item: PlanItem) -> None:
        """Apply the item's write. Raises PlanError if the row has no slot, or a slot does not exist."""
        _, slots = item.write_to(self._number)
        if item.init is not None:
            self._working[item.row] = -1
        if slots:
            self._working[item.row] = slots[0]
        states = item.states
        named = [self._working[item.row], *slots]
        if states is not None:
            named += [slot for slot in (states.load, states.save) if slot is not None and slot != -1]
        if len(slots) > 1 or not all(0 <= slot < len(self.slots) for slot in named):
            raise PlanError(f"row {item.row}: the slots {named} of pool mamba reach outside")
        if item.init is not None and (states is None or states.load is None):
            raise PlanError(f"row {item.row}: its first item has no state to start from")

    def begin(self, item: PlanItem, values: Slots) -> None:
        """Read the state before the item. values: the slot values of its tokens."""
        load = None if item.states is None else item.states.load
        slot = self._working[item.row] if load is None else load
        self._before[item.row] = 0 if slot == -1 else int(self.slots[slot])
        self._values[item.row] = values

    def context(self, row: int) -> int:
        """Return the state after the last token of the row's item."""
        values = self._values[row]
        total = int(np.add.reduce(values * self._powers[: len(values)][::-1]))
        return (self._before[row] * int(self._powers[len(values)]) + total) & MASK

    def contexts(self, row: int, first: int, end: int) -> Slots:
        """Return the states after the tokens of the row's item from index ``first`` to ``end`` (exclusive)."""
        states, state = [], self._before[row]
        for value in self._values[row][:end].tolist():
            state = (state * STEP_FACTOR + value) & MASK
            states.append(state)
        return np.array(states[first:], dtype=np.uint64)

    def commit(self, items: list[PlanItem]) -> None:
        """Store the states after the items: first all working slots, then the copies."""
        after = {item.row: self.context(item.row) for item in items}
        for item in items:
            self.slots[self._working[item.row]] = np.uint64(after[item.row])
        for item in items:
            if item.states is not None and item.states.save is not None:
                self.slots[item.states.save] = np.uint64(after[item.row])
