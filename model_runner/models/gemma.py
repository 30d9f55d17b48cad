"""Gemma 2 and Gemma 3 (text): layers of the Llama family with norms before and after attention and MLP.

The weights of all norms are stored minus one. Gemma 2 limits scores and logits by soft caps; Gemma 3 has two rotary
embeddings, one for the layers with a sliding window and one for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from ..attention import AttentionBackend, LayerAttention
from ..batch import ForwardBatch
from ..checkpoint.model_config import ModelConfig
from ..checkpoint.weight_loading import fill, fill_randomly
from ..checkpoint.weights import Checkpoint
from ..kv.kv_pool import KVShape
from ..layers.linear import Linear
from ..layers.ops import choose_ops
from ..layers.rotary import Rotary
from .decoder_layer import Layer, attend, empty_layer, layer_targets
from .llama_config import LlamaConfig
from .stored_targets import EMBEDDING, HEAD, check_stored, has_own_head, stored_targets

FINAL_NORM = "model.norm.weight"
# Gemma uses ``post_attention_layernorm`` for the norm after attention; Llama uses it for the norm before the MLP.
AFTER_ATTENTION, BEFORE_MLP, AFTER_MLP = (
    f"{name}_layernorm.weight" for name in ("post_attention", "pre_feedforward", "post_feedforward")
)


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """The configuration of a Gemma model.

    Attributes:
        sizes: the fields that it shares with the Llama family.
        scale: factor of the attention scores.
        softcap: soft cap of the attention scores; 0 for none.
        logit_softcap: soft cap of the logits; 0 for none.
        layer_types: the key of each layer's rotary parameters; None if all layers have the same.
    """

    sizes: LlamaConfig
    scale: float
    softcap: float
    logit_softcap: float
    layer_types: tuple[str | None, ...]

    @classmethod
    def read(cls, config: ModelConfig) -> GemmaConfig:
        """Convert a configuration. Raises StartupError if it is not supported."""
        sizes, is_gemma3 = LlamaConfig.read(config), config.model_type == "gemma3_text"
        return cls(
            sizes=sizes,
            scale=config.query_pre_attn_scalar**-0.5,
            softcap=0.0 if is_gemma3 else config.attn_logit_softcapping or 0.0,
            logit_softcap=config.final_logit_softcapping or 0.0,
            layer_types=tuple(config.layer_types) if is_gemma3 else (None,) * sizes.num_layers,
        )

    def layer_attention(self, index: int) -> LayerAttention:
        """Return the attention parameters of a layer."""
        return replace(self.sizes.layer_attention(index), scale=self.scale, softcap=self.softcap)


@dataclass(slots=True, eq=False)
class GemmaLayer:
    """The weights of one decoder layer. ``base.mlp_norm`` is the norm before the MLP."""

    base: Layer
    attended_norm: Tensor
    mlp_out_norm: Tensor


class GemmaModel:
    """A Gemma model with its weights on the device."""

    state_shape = None  # no recurrent layers

    def __init__(
        self, config: GemmaConfig, rotaries: dict[str | None, Rotary], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """rotaries: layer type → rotary embedding."""
        self.config = config
        self.sizes = sizes = config.sizes
        self._rotaries = rotaries
        self._ops = choose_ops(device)
        self.embedding = torch.empty(sizes.vocab_size, sizes.hidden, dtype=dtype, device=device)
        self._embedding_scale = float(torch.tensor(sizes.hidden**0.5, dtype=dtype))  # rounded, as in transformers
        self.head = Linear(self.embedding if sizes.tied else torch.empty_like(self.embedding))
        # The norms are in float32, because one plus a weight would be rounded in bfloat16.
        self.norm = torch.empty(sizes.hidden, device=device)
        self.layers = [
            GemmaLayer(
                empty_layer(sizes, config.layer_attention(index), dtype=dtype, device=device, norm_dtype=torch.float32),
                torch.empty_like(self.norm),
                torch.empty_like(self.norm),
            )
            for index in range(sizes.num_layers)
        ]

    @property
    def kv_shape(self) -> KVShape:
        """See ``Model``."""
        return self.sizes.kv_shape

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
        """See ``Model``. Norms and biases are not counted, because they are small."""
        linears = [linear for layer in self.layers for linear in layer.base.linears]
        return self.embedding.nbytes + sum(linear.num_bytes for linear in (*linears, self.head))

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

    def targets(self) -> dict[str, Tensor]:
        """Return Hugging Face tensor name → target. A target is a parameter, or a view of a fused parameter."""
        targets = {EMBEDDING: self.embedding, FINAL_NORM: self.norm}
        if not self.sizes.tied:
            targets[HEAD] = self.head.weight
        for index, layer in enumerate(self.layers):
            own = layer_targets(self.sizes, layer.base)
            own[BEFORE_MLP] = own[AFTER_ATTENTION]
            own |= {AFTER_ATTENTION: layer.attended_norm, AFTER_MLP: layer.mlp_out_norm}
            targets |= {f"model.layers.{index}.{name}": target for name, target in own.items()}
        return targets

    def finish(self) -> None:
        """Convert the loaded weights: add one to the norms, and pack the others; see ``Linear.pack``."""
        for name, target in self.targets().items():
            if name.endswith("norm.weight"):
                target.add_(1)
        for layer in self.layers:
            for linear in layer.base.linears:
                linear.pack()
        self.head.pack()

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """See ``Model``. The states are the hidden states after the final norm, [W, hidden]."""
        tables = {kind: rotary.table(batch.positions) for kind, rotary in self._rotaries.items()}
        hidden = functional.embedding(batch.token_ids, self.embedding) * self._embedding_scale  # [T, hidden]
        for layer, kind in zip(self.layers, self.config.layer_types, strict=True):
            base = layer.base
            attended = attend(
                base, self._normed(hidden, base.input_norm), tables[kind], attention, self._ops, self.sizes.norm_eps
            )
            hidden = hidden + self._normed(attended, layer.attended_norm)
            gate, up = base.gate_up(self._normed(hidden, base.mlp_norm)).chunk(2, -1)
            added = base.down(functional.gelu(gate, approximate="tanh") * up)
            hidden = hidden + self._normed(added, layer.mlp_out_norm)
        return self._normed(hidden[batch.wanted], self.norm)

    def logits(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        logits, cap = self.head(states), self.config.logit_softcap
        return cap * torch.tanh(logits / cap) if cap else logits

    def hidden(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        return states

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._ops.norm(x, weight, self.sizes.norm_eps)


def load(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> GemmaModel:
    """Load a model. Raises StartupError if its configuration needs a feature that is not implemented."""
    config = GemmaConfig.read(checkpoint.config)
    rotaries = {
        kind: Rotary.from_config(checkpoint.config, config.sizes.head_dim, dtype=dtype, device=device, layer_type=kind)
        for kind in set(config.layer_types)
    }
    if not checkpoint.is_dummy:
        sizes = config.sizes
        config = replace(config, sizes=replace(sizes, tied=sizes.tied and not has_own_head(checkpoint)))
        empty = GemmaModel(config, rotaries, dtype=dtype, device=torch.device("meta"))
        check_stored(empty.targets(), checkpoint)
    model = GemmaModel(config, rotaries, dtype=dtype, device=device)
    if checkpoint.is_dummy:
        fill_randomly(model.targets())
    else:
        targets = stored_targets(model.targets(), checkpoint)
        fill(targets, checkpoint.tensors(targets), name=checkpoint.files.name)
    model.finish()
    return model
