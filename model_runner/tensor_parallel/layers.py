"""Linear layers whose outputs are computed together with the other ranks."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ..layers.linear import Linear
from .group import Group, in_step


class RowParallelLinear(Linear):
    """A linear layer for one rank's part of the inputs. Its output is the sum over all ranks; rank 0 adds the bias."""

    def __init__(self, linear: Linear, group: Group) -> None:
        """linear: has the weight [out, in / size] and the bias of this rank."""
        super().__init__(linear.weight, linear.bias)
        self._group = group

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in / size] → [T, out]. Raises RankError."""
        with in_step():
            return self._group.all_reduce(super().__call__(x))


class VocabParallelHead(Linear):
    """An output layer that computes the logits of one range of token ids. Its output has the logits of all ranks."""

    def __init__(self, weight: Tensor, vocab_size: int, group: Group) -> None:
        """weight: [token ids of the rank, in]; see ``vocab_range``."""
        super().__init__(weight)
        self._group = group
        self._vocab_size = vocab_size

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] → [n, vocab_size]. Raises RankError."""
        num_missing = self._group.share_of(self._vocab_size) - self.out_features
        with in_step():
            logits = functional.pad(super().__call__(x), (0, num_missing))
            return self._group.all_gather(logits)[:, : self._vocab_size]
