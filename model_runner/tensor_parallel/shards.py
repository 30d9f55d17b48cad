"""The part of a Llama model's weights that one rank holds.

The projections of queries, keys and values, the gate and up projections, and the output layer are split by outputs;
o_proj and down_proj are split by inputs. The embedding and the norms are complete on every rank. If there are fewer
key-value heads than ranks, several ranks hold the same head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from ebbtide.errors import StartupError

from ..models.llama_config import LlamaConfig
from .group import Group

BY_INPUTS = ("self_attn.o_proj", "mlp.down_proj")


def check_divisible(config: LlamaConfig, size: int, name: str) -> None:
    """Raise StartupError if ``size`` ranks cannot share the heads or the MLP of the model ``name`` equally."""
    kv_heads = config.num_kv_heads
    for count, what in ((config.num_heads, "attention heads"), (config.intermediate, "units of the MLP")):
        if count % size:
            raise StartupError(f"--tp {size} does not divide the {count} {what} of {name}.")
    if kv_heads % size and size % kv_heads:
        raise StartupError(f"--tp {size} is neither a divisor nor a multiple of the {kv_heads} KV heads of {name}.")


def local_config(config: LlamaConfig, size: int) -> LlamaConfig:
    """Return the sizes of one rank's layers. ``vocab_size`` and ``hidden`` keep the values of the model."""
    return replace(
        config,
        intermediate=config.intermediate // size,
        num_heads=config.num_heads // size,
        num_kv_heads=max(config.num_kv_heads // size, 1),
    )


def vocab_range(vocab_size: int, group: Group) -> tuple[int, int]:
    """Return the first token id of the rank's part of the output layer, and the number of ids.

    The last rank has fewer ids if the number of ranks does not divide ``vocab_size``.
    """
    width = group.share_of(vocab_size)
    first = min(group.rank * width, vocab_size)
    return first, min(width, vocab_size - first)


def local_parts(
    tensors: Iterable[tuple[str, Tensor]], targets: Mapping[str, Tensor], config: LlamaConfig, group: Group
) -> Iterator[tuple[str, Tensor]]:
    """Yield each stored tensor with only the rank's part of it.

    Args:
        tensors: complete tensors, whose shapes have been checked.
        targets: parameter of the rank by tensor name.
        config: the configuration of the complete model.
    """
    for name, tensor in tensors:
        target = targets.get(name)
        if target is None:
            yield name, tensor
        elif name.endswith(".bias") and name.removesuffix(".bias").endswith(BY_INPUTS):
            yield name, tensor if group.rank == 0 else tensor.new_zeros(tensor.shape)  # summed over ranks
        else:
            yield name, _part(name, tensor, target, config, group)


def _part(name: str, tensor: Tensor, target: Tensor, config: LlamaConfig, group: Group) -> Tensor:
    split = [dim for dim in range(tensor.dim()) if tensor.shape[dim] != target.shape[dim]]
    if not split:
        return tensor
    (dim,) = split
    length = target.shape[dim]
    if name == "lm_head.weight":
        start = vocab_range(config.vocab_size, group)[0]
    elif "k_proj" in name or "v_proj" in name:
        start = group.rank * config.num_kv_heads // group.size * config.head_dim
    else:
        start = group.rank * length
    return tensor.narrow(dim, start, length)
