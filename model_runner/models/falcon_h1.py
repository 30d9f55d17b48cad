"""Falcon-H1: every layer has attention and a Mamba-2 mixer side by side, and constant multipliers in many places."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from ..attention import AttentionBackend
from ..batch import ForwardBatch
from ..checkpoint.weight_loading import fill, fill_randomly
from ..checkpoint.weights import Checkpoint
from ..kv.kv_pool import KVShape
from ..kv.state_memory import StateShape
from ..layers.linear import Linear
from ..layers.ops import choose_ops
from ..layers.rotary import Rotary
from ..layers.short_conv import ConvIndex
from .decoder_layer import Layer, attend, empty_layer, layer_targets
from .falcon_h1_config import FalconH1Config
from .mamba_mixer import MambaMixer
from .stored_targets import EMBEDDING, HEAD, check_stored, has_own_head, stored_targets

FINAL_NORM = "model.final_layernorm.weight"
NAMES = {"post_attention_layernorm": "pre_ff_layernorm", "mlp": "feed_forward"}


@dataclass(slots=True, eq=False)
class FalconH1Layer:
    """The weights of one layer. ``base`` has those of attention and MLP."""

    base: Layer
    mixer: MambaMixer

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        return *self.base.linears, *self.mixer.linears


class FalconH1Model:
    """A Falcon-H1 model with its weights on the device."""

    def __init__(self, config: FalconH1Config, rotary: Rotary, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.sizes = sizes = config.sizes
        self._rotary = rotary
        self._ops = choose_ops(device)
        self.embedding = torch.empty(sizes.vocab_size, sizes.hidden, dtype=dtype, device=device)
        self.head = Linear(self.embedding if sizes.tied else torch.empty_like(self.embedding))
        self.norm = torch.empty(sizes.hidden, dtype=dtype, device=device)
        self.layers = [
            FalconH1Layer(
                empty_layer(sizes, config.layer_attention(index), dtype=dtype, device=device),
                MambaMixer(config.mixer, dtype=dtype, device=device),
            )
            for index in range(sizes.num_layers)
        ]

    @property
    def kv_shape(self) -> KVShape:
        """See ``Model``."""
        return self.sizes.kv_shape

    @property
    def state_shape(self) -> StateShape:
        """See ``Model``: for each layer, the last inputs of the convolution and the state of the recurrence."""
        return StateShape(self.sizes.num_layers, (self.config.mixer.state_size,), torch.float32)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """See ``Model``."""
        return self.sizes.windows

    @property
    def vocab_size(self) -> int:
        """See ``Model``."""
        return self.sizes.vocab_size

    @property
    def weight_bytes(self) -> int:
        """See ``Model``. Norms, biases and convolutions are not counted, because they are small."""
        linears = [linear for layer in self.layers for linear in layer.linears]
        return self.embedding.nbytes + sum(linear.num_bytes for linear in (*linears, self.head))

    @property
    def is_deterministic(self) -> bool:
        """See ``Model``. The reduction order of torch's operations depends on the batch."""
        return False

    @property
    def is_capturable(self) -> bool:
        """See ``Model``. Decode graphs have no inputs for recurrent states."""
        return False

    def adapt_threads(self) -> None:
        """See ``Model``. Does nothing: the number of threads of torch's operations is fixed."""

    def targets(self) -> dict[str, Tensor]:
        """Return Hugging Face tensor name → target. A target is a parameter, or a view of a fused parameter."""
        targets = {EMBEDDING: self.embedding, FINAL_NORM: self.norm}
        if not self.sizes.tied:
            targets[HEAD] = self.head.weight
        for index, layer in enumerate(self.layers):
            own = {_renamed(name): target for name, target in layer_targets(self.sizes, layer.base).items()}
            own |= {f"mamba.{name}": target for name, target in layer.mixer.targets().items()}
            targets |= {f"model.layers.{index}.{name}": target for name, target in own.items()}
        return targets

    def pack(self) -> None:
        """Pack the loaded weights; see ``Linear.pack``."""
        for layer in self.layers:
            for linear in layer.linears:
                linear.pack()
        self.head.pack()

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """See ``Model``. The states are the hidden states after the final norm, [W, hidden]."""
        config, eps = self.config, self.sizes.norm_eps
        table = self._rotary.table(batch.positions)
        index = ConvIndex.of(batch, config.mixer.num_taps)
        hidden = functional.embedding(batch.token_ids, self.embedding) * config.embedding_factor  # [T, hidden]
        for layer in self.layers:
            base = layer.base
            normed = self._ops.norm(hidden, base.input_norm, eps)
            mixed = layer.mixer.forward(normed, batch, index) * config.mixer_out_factor
            attended = attend(base, normed * config.attention_in_factor, table, attention, self._ops, eps)
            hidden = hidden + (mixed + attended * config.attention_out_factor)
            gate, up = base.gate_up(self._ops.norm(hidden, base.mlp_norm, eps)).chunk(2, -1)
            added = base.down(up * functional.silu(gate * config.gate_factor))
            hidden = hidden + added * config.down_factor
        return self._ops.norm(hidden[batch.wanted], self.norm, eps)

    def logits(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        return self.head(states) * self.config.head_factor

    def hidden(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        return states


def load(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> FalconH1Model:
    """Load a model. Raises StartupError if its configuration needs a feature that is not implemented."""
    config = FalconH1Config.read(checkpoint.config)
    sizes = config.sizes
    rotary = Rotary.from_config(checkpoint.config, sizes.head_dim, dtype=dtype, device=device)
    if not checkpoint.is_dummy:
        config = replace(config, sizes=replace(sizes, tied=sizes.tied and not has_own_head(checkpoint)))
        empty = FalconH1Model(config, rotary, dtype=dtype, device=torch.device("meta"))
        check_stored(empty.targets(), checkpoint)
    model = FalconH1Model(config, rotary, dtype=dtype, device=device)
    if checkpoint.is_dummy:
        fill_randomly(model.targets())
    else:
        targets = stored_targets(model.targets(), checkpoint)
        fill(targets, checkpoint.tensors(targets), name=checkpoint.files.name)
    model.pack()
    return model


def _renamed(name: str) -> str:
    first, _, rest = name.partition(".")
    return f"{NAMES.get(first, first)}.{rest}"
