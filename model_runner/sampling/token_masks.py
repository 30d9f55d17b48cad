"""Grammar masks, which determine the token ids that a row may sample in one step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ebbtide.errors import PlanError

from ..transfers import host_tensor


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The M masks of the sampled rows that have one.

    Attributes:
        which: the indices of the masked rows of logits.
        banned: bool [M, vocab], True for the ids that a mask excludes.
        empty: int64 [E], the elements of ``which`` whose mask allows no id.
    """

    which: list[int]
    banned: Tensor
    empty: Tensor

    def apply(self, logits: Tensor) -> None:
        """Set the logits that the masks exclude to minus infinity, in place."""
        if len(self.which) == len(logits):
            logits.masked_fill_(self.banned, float("-inf"))
            return
        for place, number in enumerate(self.which):
            logits[number].masked_fill_(self.banned[place], float("-inf"))

    def restore(self, logits: Tensor, own: Tensor, changed: Collection[int]) -> None:
        """Give the mask priority over bans: if bans leave no id of the mask, use the row's raw logits within the mask.

        own: the raw logits of all rows. changed: indices of the rows whose ``logits`` differ from them.
        """
        for place in (place for place, number in enumerate(self.which) if number in changed):
            row = logits[self.which[place]]
            plain = own[self.which[place]].to(row.dtype).masked_fill(self.banned[place], float("-inf"))
            row.copy_(torch.where(row.amax() == float("-inf"), plain, row))


def stage_masks(masks: list[bytes], vocab_size: int) -> TokenMasks | None:
    """Return the masks of a step, on the host; None if no row has a mask.

    masks: one per sampled row; b"" for no mask. Bit i, least significant bit first, is set if id i is allowed.
    Raises PlanError if a mask has too few bits.
    """
    which = [number for number, mask in enumerate(masks) if mask]
    if not which:
        return None
    banned = np.empty((len(which), vocab_size), dtype=bool)
    for place, number in enumerate(which):
        bits = np.unpackbits(np.frombuffer(masks[number], dtype=np.uint8), bitorder="little")
        if len(bits) < vocab_size:
            raise PlanError(f"A mask has {len(bits)} bits for {vocab_size} token ids.")
        np.equal(bits[:vocab_size], 0, out=banned[place])
    empty = [number for number, row in zip(which, banned, strict=True) if row.all()]
    return TokenMasks(which, torch.from_numpy(banned), host_tensor(empty, np.int64))
