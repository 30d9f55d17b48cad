"""The shards of a Llama model: together they have all weights, and the sums of their outputs equal the outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ebbtide.errors import StartupError
from ebbtide.model_runner.checkpoint.weights import open_checkpoint
from ebbtide.model_runner.layers.linear import Linear
from ebbtide.model_runner.layers.rotary import Rotary
from ebbtide.model_runner.models import check_architecture
from ebbtide.model_runner.models.llama import LlamaModel
from ebbtide.model_runner.models.llama_config import LlamaConfig
from ebbtide.model_runner.tensor_parallel.group import Group, RankError
from ebbtide.model_runner.tensor_parallel.layers import RowParallelLinear, VocabParallelHead
from ebbtide.model_runner.tensor_parallel.shards import check_divisible, local_parts, vocab_range
from ebbtide.tokenization.model_files import ModelFiles

from ..checkpoints import write_checkpoint

CPU = torch.device("cpu")
CONFIG = LlamaConfig(
    vocab_size=37,
    hidden=16,
    intermediate=24,
    num_layers=2,
    num_heads=8,
    num_kv_heads=2,
    head_dim=4,
    norm_eps=1e-5,
    tied=False,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    qk_norm=True,
    windows=(None, None),
)


@dataclass(frozen=True, slots=True)
class Recording(Group):
    """One rank without the other ones. gathered: the tensors that it would have sent to them."""

    gathered: list[Tensor] = field(default_factory=list)

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        self.gathered.append(x)
        return torch.cat([x] * self.size, -1)


class Failing(Group):
    """A rank whose connection to the other ranks is lost."""

    def all_reduce(self, x: Tensor) -> Tensor:
        raise RuntimeError("connection closed by peer")


def model(config: LlamaConfig, group: Group | None) -> LlamaModel:
    rotary = Rotary(torch.ones(config.head_dim // 2), 1.0, dtype=torch.float32)
    return LlamaModel(config, rotary, dtype=torch.float32, device=CPU, group=group)


def stored(config: LlamaConfig) -> dict[str, Tensor]:
    return {name: torch.randn(target.shape) for name, target in model(config, None).targets().items()}


def parts(config: LlamaConfig, tensors: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    """Return the parts of each rank, after a check that each part has the shape of the rank's parameter."""
    found = []
    for rank in range(size):
        group = Recording(rank, size)
        targets = model(config, group).targets()
        part = dict(local_parts(tensors.items(), targets, config, group))
        assert {name: tensor.shape for name, tensor in part.items()} == {
            name: target.shape for name, target in targets.items()
        }
        found.append(part)
    return found


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("kv_heads", [2, 4, 8])
def test_the_parts_of_all_ranks_are_the_weights(size: int, kv_heads: int) -> None:
    config = LlamaConfig(**{name: getattr(CONFIG, name) for name in CONFIG.__slots__} | {"num_kv_heads": kv_heads})
    tensors = stored(config)
    found = parts(config, tensors, size)
    copies = max(size // kv_heads, 1)  # ranks that hold the same KV head
    for name, tensor in tensors.items():
        own = [part[name] for part in found]
        if name.endswith(("o_proj.bias", "down_proj.bias")):
            assert torch.equal(sum(own, torch.zeros_like(tensor)), tensor)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            assert torch.equal(torch.cat(own, 1), tensor)
        elif own[0].shape == tensor.shape:
            assert all(torch.equal(part, tensor) for part in own)
        elif "k_proj" in name or "v_proj" in name:
            assert torch.equal(torch.cat(own[::copies]), tensor)
            assert all(torch.equal(own[rank], own[rank - rank % copies]) for rank in range(size))
        else:
            assert torch.equal(torch.cat(own), tensor)
    split = {name for name, tensor in tensors.items() if found[0][name].shape != tensor.shape}
    assert {name.split(".")[-2] for name in split} == {
        "lm_head",
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    }


@pytest.mark.parametrize(("vocab_size", "size"), [(37, 2), (37, 4), (8, 8), (9, 8), (3, 4)])
def test_every_token_id_has_one_rank(vocab_size: int, size: int) -> None:
    ranges = [vocab_range(vocab_size, Group(rank, size)) for rank in range(size)]
    assert [token for first, length in ranges for token in range(first, first + length)] == list(range(vocab_size))


@pytest.mark.parametrize("size", [2, 4])
def test_the_logits_of_all_ranks_are_those_of_the_whole_layer(size: int) -> None:
    weight, x = torch.randn(37, 16), torch.randn(5, 16)
    sent = []
    for rank in range(size):
        group = Recording(rank, size)
        head = VocabParallelHead(weight.narrow(0, *vocab_range(37, group)), 37, group)
        assert head(x).shape == (5, 37)
        sent += group.gathered
    torch.testing.assert_close(torch.cat(sent, -1)[:, :37], x @ weight.T)


def test_the_sum_of_all_ranks_is_the_output_of_the_whole_layer() -> None:
    weight, bias, x = torch.randn(7, 16), torch.randn(7), torch.randn(5, 16)
    own = []
    for rank in range(4):
        linear = Linear(weight[:, 4 * rank : 4 * rank + 4], bias if rank == 0 else torch.zeros(7))
        own.append(RowParallelLinear(linear, Recording(rank, 4))(x[:, 4 * rank : 4 * rank + 4]))
    torch.testing.assert_close(torch.stack(own).sum(0), x @ weight.T + bias)


def test_a_failed_operation_between_ranks_is_not_attributed_to_an_item() -> None:
    layer = RowParallelLinear(Linear(torch.randn(7, 4)), Failing(0, 2))
    with pytest.raises(RankError, match="connection closed by peer"):
        layer(torch.randn(5, 4))


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        (3, "--tp 3 does not divide the 8 attention heads of tiny."),
        (16, "--tp 16 does not divide the 8 attention heads of tiny."),
    ],
)
def test_a_number_of_ranks_that_does_not_fit_is_refused(size: int, sentence: str) -> None:
    with pytest.raises(StartupError) as refusal:
        check_divisible(CONFIG, size, "tiny")
    assert str(refusal.value) == sentence


def test_kv_heads_are_shared_by_a_divisor_or_a_multiple() -> None:
    config = LlamaConfig(
        **{name: getattr(CONFIG, name) for name in CONFIG.__slots__} | {"num_heads": 12, "num_kv_heads": 6}
    )
    with pytest.raises(StartupError, match="neither a divisor nor a multiple of the 6 KV heads"):
        check_divisible(config, 4, "tiny")


def test_a_family_without_parallel_code_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "gemma2", "gemma2")
    with pytest.raises(StartupError, match=r"^--tp 2 is not supported for Gemma2ForCausalLM models"):
        check_architecture(open_checkpoint(ModelFiles("gemma2", str(folder))), num_ranks=2)
