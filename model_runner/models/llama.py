"""The Llama family: Llama, SmolLM, Mistral, Qwen2, Qwen3. The module does not depend on the KV pool."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from ..attention import AttentionBackend
from ..batch import ForwardBatch
from ..checkpoint.weight_loading import fill, fill_randomly
from ..checkpoint.weights import Checkpoint
from ..kv.kv_pool import KVShape
from ..layers.linear import Linear
from ..layers.ops import choose_ops
from ..layers.rotary import Rotary
from ..tensor_parallel.group import Group
from ..tensor_parallel.layers import RowParallelLinear, VocabParallelHead
from ..tensor_parallel.shards import check_divisible, local_config, local_parts, vocab_range
from .decoder_layer import Layer, attend, empty_layer, layer_targets
from .llama_config import LlamaConfig
from .stored_targets import EMBEDDING, HEAD, check_stored, has_own_head, stored_targets


class LlamaModel:
    """A model of the Llama family with its weights on the device."""

    state_shape = None  # no recurrent layers

    def __init__(
        self,
        config: LlamaConfig,
        rotary: Rotary,
        *,
        dtype: torch.dtype,
        device: torch.device,
        group: Group | None = None,
    ) -> None:
        """group: the tensor-parallel ranks that share the weights; None if this model has all weights."""
        config = config if group is None else local_config(config, group.size)
        self.config = config
        self.rotary = rotary
        self.embedding = torch.empty(config.vocab_size, config.hidden, dtype=dtype, device=device)
        self.norm = torch.empty(config.hidden, dtype=dtype, device=device)
        self._ops = choose_ops(device)
        if group is None:
            self.head = Linear(self.embedding if config.tied else torch.empty_like(self.embedding))
        else:
            part = self.embedding.narrow(0, *vocab_range(config.vocab_size, group))
            weight = part if config.tied else torch.empty_like(part)
            self.head = VocabParallelHead(weight, config.vocab_size, group)
        specs = [config.layer_attention(index) for index in range(config.num_layers)]
        self.layers = [empty_layer(config, spec, dtype=dtype, device=device) for spec in specs]
        if group is not None:
            for layer in self.layers:
                layer.out = RowParallelLinear(layer.out, group)
                layer.down = RowParallelLinear(layer.down, group)

    @property
    def kv_shape(self) -> KVShape:
        """See ``Model``."""
        return self.config.kv_shape

    @property
    def windows(self) -> tuple[int | None, ...]:
        """See ``Model``."""
        return self.config.windows

    @property
    def vocab_size(self) -> int:
        """See ``Model``."""
        return self.config.vocab_size

    @property
    def weight_bytes(self) -> int:
        """See ``Model``. Norms and biases are not counted, because they are small."""
        linears = [linear for layer in self.layers for linear in layer.linears]
        return self.embedding.nbytes + sum(linear.num_bytes for linear in (*linears, self.head))

    def targets(self) -> dict[str, Tensor]:
        """Return Hugging Face tensor name → target. A target is a parameter, or a view of a fused parameter."""
        targets = {EMBEDDING: self.embedding, "model.norm.weight": self.norm}
        if not self.config.tied:
            targets[HEAD] = self.head.weight
        for index, layer in enumerate(self.layers):
            for name, target in layer_targets(self.config, layer).items():
                targets[f"model.layers.{index}.{name}"] = target
        return targets

    def pack(self) -> None:
        """Pack the loaded weights; see ``Linear.pack``."""
        for layer in self.layers:
            for linear in layer.linears:
                linear.pack()
        self.head.pack()

    @property
    def is_deterministic(self) -> bool:
        """See ``Model``. The reduction order of torch's operations depends on the batch."""
        return False

    @property
    def is_capturable(self) -> bool:
        """See ``Model``. Every operation runs on the device."""
        return True

    def adapt_threads(self) -> None:
        """See ``Model``. Does nothing: the number of threads of torch's operations is fixed."""

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """See ``Model``. The states are the hidden states after the final norm, [W, hidden]."""
        table = self.rotary.table(batch.positions)
        hidden = functional.embedding(batch.token_ids, self.embedding)  # [T, hidden]
        normed = self._normed(hidden, self.layers[0].input_norm)
        next_norms = [*(layer.input_norm for layer in self.layers[1:]), None]
        for layer, next_norm in zip(self.layers, next_norms, strict=True):
            normed, hidden = self._add_norm(hidden, self._attend(layer, normed, table, attention), layer.mlp_norm)
            added = layer.down(self._ops.silu_mul(layer.gate_up(normed)))
            if next_norm is None:  # only some states are needed after the last layer
                hidden, added = hidden[batch.wanted], added[batch.wanted]
            normed, hidden = self._add_norm(hidden, added, self.norm if next_norm is None else next_norm)
        return normed

    def logits(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        return self.head(states)

    def hidden(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        return states

    def _attend(self, layer: Layer, x: Tensor, table: tuple[Tensor, Tensor], attention: AttentionBackend) -> Tensor:
        return attend(layer, x, table, attention, self._ops, self.config.norm_eps)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._ops.norm(x, weight, self.config.norm_eps)

    def _add_norm(self, x: Tensor, added: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norm of the sum, and the sum."""
        return self._ops.add_norm(x, added, weight, self.config.norm_eps)


def load(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, group: Group | None = None) -> LlamaModel:
    """Load a model. Raises StartupError if its configuration needs a feature that is not implemented.

    group: the tensor-parallel ranks that share the weights; None for one process.
    """
    config, rotary, _ = planned(checkpoint, dtype=dtype, device=device)
    if group is not None:
        check_divisible(config, group.size, checkpoint.files.name)
    model = LlamaModel(config, rotary, dtype=dtype, device=device, group=group)
    if checkpoint.is_dummy:
        fill_randomly(model.targets())
        model.pack()
        return model
    targets = stored_targets(model.targets(), checkpoint)
    tensors = checkpoint.tensors(targets)
    if group is not None:
        tensors = local_parts(tensors, targets, config, group)
    fill(targets, tensors, name=checkpoint.files.name)
    model.pack()
    return model


def planned(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device
) -> tuple[LlamaConfig, Rotary, list[str]]:
    """Check the stored tensors. Returns the configuration, the rotary embedding and the tensors' names."""
    config = LlamaConfig.read(checkpoint.config)
    rotary = Rotary.from_config(checkpoint.config, config.head_dim, dtype=dtype, device=device)
    if checkpoint.is_dummy:
        return config, rotary, []
    config = replace(config, tied=config.tied and not has_own_head(checkpoint))
    model = LlamaModel(config, rotary, dtype=dtype, device=torch.device("meta"))
    return config, rotary, check_stored(model.targets(), checkpoint)
