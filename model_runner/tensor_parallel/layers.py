"""Linear layers whose outputs need the other ranks."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ..layers.linear import Linear
from .group import Group, in_step


class RowParallelLinear(Linear):
    """A linear layer that has a part of the inputs. Its output is the sum over all ranks; rank 0 adds the bias."""

    group: Group

    @classmethod
    def of(cls, linear: Linear, group: Group) -> RowParallelLinear:
        """The layer with the weight [out, in / size] and bias of ``linear``."""
        layer = cls(linear.weight, linear.bias)
        layer.group = group
        return layer

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in / size] → [T, out]. Raises RankError."""
        with in_step():
            return self.group.all_reduce(super().__call__(x))


class VocabParallelHead(Linear):
    """An output layer that has the logits of a range of token ids. Its output contains those of all ranks."""

    group: Group
    vocab_size: int

    @classmethod
    def of(cls, weight: Tensor, vocab_size: int, group: Group) -> VocabParallelHead:
        """weight: [token ids of the rank, in]; see ``vocab_range``."""
        head = cls(weight)
        head.group, head.vocab_size = group, vocab_size
        return head

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] → [n, vocab_size]. Raises RankError."""
        width = -(-self.vocab_size // self.group.size)
        with in_step():
            logits = functional.pad(super().__call__(x), (0, width - self.out_features))
            return self.group.all_gather(logits)[:, : self.vocab_size]
