"""LFM2: layers of the Llama family with attention, and layers with a gated short convolution in its place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from ebbtide.errors import StartupError

from ..attention import AttentionBackend
from ..batch import ForwardBatch
from ..checkpoint.model_config import ModelConfig
from ..checkpoint.weight_loading import fill, fill_randomly
from ..checkpoint.weights import Checkpoint
from ..kv.kv_pool import KVShape
from ..kv.state_memory import StateShape
from ..layers.linear import Linear
from ..layers.ops import choose_ops
from ..layers.rotary import Rotary
from ..layers.short_conv import ConvIndex, causal_conv
from .decoder_layer import Layer, attend, empty_layer, layer_targets
from .llama_config import LlamaConfig
from .stored_targets import EMBEDDING, HEAD, check_stored, has_own_head, stored_targets

FINAL_NORM = "model.embedding_norm.weight"
# Part of a tensor's name in the Llama family → its name here.
NAMES = {
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


@dataclass(frozen=True, slots=True)
class Lfm2Config:
    """The configuration of an LFM2 model.

    Attributes:
        sizes: the fields that it shares with the Llama family; ``num_layers`` counts only the layers with attention.
        has_attention: for each layer, False if it has a convolution.
        num_taps: number of tokens that a convolution reads, including the present one.
        conv_bias: True if the linear layers and the convolution of those layers have biases.
    """

    sizes: LlamaConfig
    has_attention: tuple[bool, ...]
    num_taps: int
    conv_bias: bool

    @classmethod
    def read(cls, config: ModelConfig) -> Lfm2Config:
        """Convert a configuration. Raises StartupError if its layer types or sizes are not supported."""
        kinds = tuple(config.layer_types)
        if not set(kinds) <= {"full_attention", "conv"} or "full_attention" not in kinds:
            raise StartupError(
                f"The layer types {sorted(set(kinds))} (layer_types) are not supported for lfm2 models: they must be "
                "full_attention and conv, and at least one layer must have attention."
            )
        if config.conv_L_cache < 2:
            raise StartupError(f"The field conv_L_cache of an lfm2 model must be 2 or more, not {config.conv_L_cache}.")
        sizes = LlamaConfig(
            vocab_size=config.vocab_size,
            hidden=config.hidden_size,
            intermediate=_intermediate_size(config),
            num_layers=kinds.count("full_attention"),
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads,
            norm_eps=config.norm_eps,
            tied=config.tie_word_embeddings,
            qkv_bias=False,
            out_bias=False,
            mlp_bias=False,
            qk_norm=True,
            windows=(None,) * kinds.count("full_attention"),
        )
        return cls(sizes, tuple(kind != "conv" for kind in kinds), config.conv_L_cache, config.conv_bias)


@dataclass(slots=True, eq=False)
class ConvLayer:
    """The weights of a layer with a convolution. ``in_proj`` yields the gates of input and output, and the input."""

    input_norm: Tensor
    in_proj: Linear
    weight: Tensor  # [hidden, taps]
    bias: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        return self.in_proj, self.out, self.gate_up, self.down


class Lfm2Model:
    """An LFM2 model with its weights on the device."""

    def __init__(self, config: Lfm2Config, rotary: Rotary, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.sizes = sizes = config.sizes
        self._rotary = rotary
        self._ops = choose_ops(device)
        self.embedding = torch.empty(sizes.vocab_size, sizes.hidden, dtype=dtype, device=device)
        self.head = Linear(self.embedding if sizes.tied else torch.empty_like(self.embedding))
        self.norm = torch.empty(sizes.hidden, dtype=dtype, device=device)
        self.layers: list[Layer | ConvLayer] = []
        for index, has_attention in enumerate(config.has_attention):
            if has_attention:
                spec = sizes.layer_attention(sum(config.has_attention[:index]))
                self.layers.append(empty_layer(sizes, spec, dtype=dtype, device=device))
            else:
                self.layers.append(_empty_conv_layer(config, dtype=dtype, device=device))

    @property
    def kv_shape(self) -> KVShape:
        """See ``Model``."""
        return self.sizes.kv_shape

    @property
    def state_shape(self) -> StateShape | None:
        """See ``Model``: the last inputs of each convolution."""
        size = (self.config.num_taps - 1, self.sizes.hidden)
        num_layers = self.config.has_attention.count(False)
        return StateShape(num_layers, size) if num_layers else None

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
            own = layer_targets(self.sizes, layer) if isinstance(layer, Layer) else _conv_targets(layer)
            targets |= {f"model.layers.{index}.{_renamed(name)}": target for name, target in own.items()}
        return targets

    def pack(self) -> None:
        """Pack the loaded weights; see ``Linear.pack``."""
        for layer in self.layers:
            for linear in layer.linears:
                linear.pack()
        self.head.pack()

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """See ``Model``. The states are the hidden states after the final norm, [W, hidden]."""
        table = self._rotary.table(batch.positions)
        index = ConvIndex.of(batch, self.config.num_taps)
        hidden = functional.embedding(batch.token_ids, self.embedding)  # [T, hidden]
        for layer in self.layers:
            normed = self._normed(hidden, layer.input_norm)
            if isinstance(layer, Layer):
                mixed = attend(layer, normed, table, attention, self._ops, self.sizes.norm_eps)
            else:
                mixed = _convolve(layer, normed, batch, index)
            hidden = hidden + mixed
            added = layer.down(self._ops.silu_mul(layer.gate_up(self._normed(hidden, layer.mlp_norm))))
            hidden = hidden + added
        return self._normed(hidden[batch.wanted], self.norm)

    def logits(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        return self.head(states)

    def hidden(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        return states

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._ops.norm(x, weight, self.sizes.norm_eps)


def load(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Lfm2Model:
    """Load a model. Raises StartupError if its configuration needs a feature that is not implemented."""
    config = Lfm2Config.read(checkpoint.config)
    sizes = config.sizes
    rotary = Rotary.from_config(checkpoint.config, sizes.head_dim, dtype=dtype, device=device)
    if not checkpoint.is_dummy:
        config = replace(config, sizes=replace(sizes, tied=sizes.tied and not has_own_head(checkpoint)))
        empty = Lfm2Model(config, rotary, dtype=dtype, device=torch.device("meta"))
        check_stored(empty.targets(), checkpoint)
    model = Lfm2Model(config, rotary, dtype=dtype, device=device)
    if checkpoint.is_dummy:
        fill_randomly(model.targets())
    else:
        targets = stored_targets(model.targets(), checkpoint)
        fill(targets, checkpoint.tensors(targets), name=checkpoint.files.name)
    model.pack()
    return model


def _convolve(layer: ConvLayer, x: Tensor, batch: ForwardBatch, index: ConvIndex) -> Tensor:
    """Return the output of the gated convolution of x, [T, hidden], and advance the states of the batch."""
    assert batch.states is not None
    gate, out_gate, inner = layer.in_proj(x).chunk(3, -1)
    mixed, after = causal_conv(gate * inner, batch.states.before(), layer.weight, layer.bias, index)
    batch.states.advance(after)
    return layer.out(out_gate * mixed)


def _empty_conv_layer(config: Lfm2Config, *, dtype: torch.dtype, device: torch.device) -> ConvLayer:
    hidden, intermediate, bias = config.sizes.hidden, config.sizes.intermediate, config.conv_bias

    def linear(out: int, inner: int, *, has_bias: bool) -> Linear:
        return Linear.empty(out, inner, bias=has_bias, dtype=dtype, device=device)

    def vector(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    return ConvLayer(
        input_norm=vector(hidden),
        in_proj=linear(3 * hidden, hidden, has_bias=bias),
        weight=vector(hidden, config.num_taps),
        bias=vector(hidden) if bias else None,
        out=linear(hidden, hidden, has_bias=bias),
        mlp_norm=vector(hidden),
        gate_up=linear(2 * intermediate, hidden, has_bias=False),
        down=linear(hidden, intermediate, has_bias=False),
    )


def _conv_targets(layer: ConvLayer) -> dict[str, Tensor]:
    gate, up = layer.gate_up.weight.chunk(2)
    targets = {
        "operator_norm.weight": layer.input_norm,
        "conv.in_proj.weight": layer.in_proj.weight,
        "conv.conv.weight": layer.weight.unsqueeze(1),
        "conv.out_proj.weight": layer.out.weight,
        "ffn_norm.weight": layer.mlp_norm,
        "feed_forward.w1.weight": gate,
        "feed_forward.w3.weight": up,
        "feed_forward.w2.weight": layer.down.weight,
    }
    biases = {"in_proj": layer.in_proj.bias, "conv": layer.bias, "out_proj": layer.out.bias}
    return targets | {f"conv.{name}.bias": bias for name, bias in biases.items() if bias is not None}


def _renamed(name: str) -> str:
    return next((name.replace(llama, own) for llama, own in NAMES.items() if name.startswith(f"{llama}.")), name)


def _intermediate_size(config: ModelConfig) -> int:
    """Return the size of the MLP: two thirds of the stored size if it is adjusted, rounded up to a multiple."""
    size = int(config.intermediate_size)
    if config.block_auto_adjust_ff_dim:
        size = int(2 * size / 3)
        if config.block_ffn_dim_multiplier is not None:
            size = int(config.block_ffn_dim_multiplier * size)
            size = -(-size // config.block_multiple_of) * config.block_multiple_of
    return size
