"""The Llama family: Llama, SmolLM, Mistral, Qwen2, Qwen3. The module does not depend on the KV pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from ..attention import AttentionBackend, LayerAttention
from ..batch import ForwardBatch
from ..checkpoint.weight_loading import check_shapes, fill, fill_randomly
from ..checkpoint.weights import Checkpoint
from ..kv.kv_pool import KVShape
from ..layers.linear import Linear
from ..layers.ops import choose_ops
from ..layers.rotary import Rotary
from ..tensor_parallel.group import Group
from ..tensor_parallel.layers import RowParallelLinear, VocabParallelHead
from ..tensor_parallel.shards import check_divisible, local_config, local_parts, vocab_range
from .llama_config import LlamaConfig

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(slots=True, eq=False)
class Layer:
    """The weights of one decoder layer.

    Attributes:
        q_norm, k_norm: [head_dim]; None except in Qwen3.
    """

    attention: LayerAttention
    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        return self.qkv, self.out, self.gate_up, self.down


class LlamaModel:
    """A model of the Llama family with its weights on the device."""

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
        self.layers = [_empty_layer(config, index, dtype=dtype, device=device) for index in range(config.num_layers)]
        if group is not None:
            for layer in self.layers:
                layer.out = RowParallelLinear(layer.out, group)
                layer.down = RowParallelLinear(layer.down, group)

    @property
    def kv_shape(self) -> KVShape:
        """See ``Model``."""
        return KVShape(self.config.num_layers, self.config.num_kv_heads, self.config.head_dim)

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
            for name, target in _layer_targets(self.config, layer).items():
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
        """See ``Model``. Does nothing: torch's operations always use torch's number of threads."""

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
        spec = layer.attention
        heads = layer.qkv(x).view(x.shape[0], spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        q_and_k, v = torch.split(heads, [spec.num_heads + spec.num_kv_heads, spec.num_kv_heads], 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = torch.split(q_and_k, [spec.num_heads, spec.num_kv_heads], 1)
            q_and_k = torch.cat((self._normed(q, layer.q_norm), self._normed(k, layer.k_norm)), 1)
        q, k = torch.split(self._ops.rotate(q_and_k, table), [spec.num_heads, spec.num_kv_heads], 1)
        return layer.out(attention.forward(q, k, v, spec).flatten(1))

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
    targets = _stored_targets(model, checkpoint)
    tensors = checkpoint.tensors(targets)
    if group is not None:
        tensors = local_parts(tensors, targets, config, group)
    fill(targets, tensors, name=checkpoint.files.name)
    model.pack()
    return model


def planned(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device
) -> tuple[LlamaConfig, Rotary, list[str]]:
    """Check the shapes of the stored tensors. Returns the configuration, the rotary embedding and the tensors' names.

    This happens before memory is allocated, because a wrong size in the configuration could require any amount.
    """
    config = LlamaConfig.read(checkpoint.config)
    rotary = Rotary.from_config(checkpoint.config, config.head_dim, dtype=dtype, device=device)
    if checkpoint.is_dummy:
        return config, rotary, []
    config = replace(config, tied=config.tied and not _has_own_head(checkpoint))
    model = LlamaModel(config, rotary, dtype=dtype, device=torch.device("meta"))
    targets = _stored_targets(model, checkpoint)
    check_shapes(targets, checkpoint.shapes(targets), name=checkpoint.files.name)
    return config, rotary, list(targets)


def _has_own_head(checkpoint: Checkpoint) -> bool:
    """Return True if the checkpoint has an output layer that differs from the embedding to which it should be tied."""
    if checkpoint.gguf is not None or not {HEAD, EMBEDDING} <= checkpoint.safetensors.stored.keys():
        return False
    head, embedding = checkpoint.safetensors.tensor(HEAD), checkpoint.safetensors.tensor(EMBEDDING)
    return not torch.equal(head.to(embedding.dtype), embedding)


def _stored_targets(model: LlamaModel, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return checkpoint tensor name → target. A checkpoint may store tied weights under either of their names."""
    targets = model.targets()
    if checkpoint.gguf is None and HEAD not in targets:
        stored = checkpoint.safetensors.stored
        if EMBEDDING not in stored and HEAD in stored:
            targets[HEAD] = targets.pop(EMBEDDING)
    return targets


def _empty_layer(config: LlamaConfig, index: int, *, dtype: torch.dtype, device: torch.device) -> Layer:
    def linear(out: int, inner: int, *, bias: bool) -> Linear:
        return Linear.empty(out, inner, bias=bias, dtype=dtype, device=device)

    def norm(size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return Layer(
        attention=LayerAttention(
            index,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.head_dim**-0.5,
            window=config.windows[index],
        ),
        input_norm=norm(config.hidden),
        qkv=linear(q_size + 2 * kv_size, config.hidden, bias=config.qkv_bias),
        q_norm=norm(config.head_dim) if config.qk_norm else None,
        k_norm=norm(config.head_dim) if config.qk_norm else None,
        out=linear(config.hidden, q_size, bias=config.out_bias),
        mlp_norm=norm(config.hidden),
        gate_up=linear(2 * config.intermediate, config.hidden, bias=config.mlp_bias),
        down=linear(config.hidden, config.intermediate, bias=config.mlp_bias),
    )


def _layer_targets(config: LlamaConfig, layer: Layer) -> dict[str, Tensor]:
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    targets = {"input_layernorm.weight": layer.input_norm, "post_attention_layernorm.weight": layer.mlp_norm}
    if layer.q_norm is not None and layer.k_norm is not None:
        targets |= {"self_attn.q_norm.weight": layer.q_norm, "self_attn.k_norm.weight": layer.k_norm}
    qkv_names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    targets |= _parts(layer.qkv, qkv_names, [q_size, kv_size, kv_size])
    targets |= _parts(layer.gate_up, ("mlp.gate_proj", "mlp.up_proj"), [config.intermediate, config.intermediate])
    targets |= _parts(layer.out, ("self_attn.o_proj",), [config.hidden])
    return targets | _parts(layer.down, ("mlp.down_proj",), [config.hidden])


def _parts(linear: Linear, names: tuple[str, ...], sizes: list[int]) -> dict[str, Tensor]:
    """Return tensor name → view of a fused layer, for each of its parts. sizes: number of rows of each part."""
    targets = {f"{name}.weight": part for name, part in zip(names, torch.split(linear.weight, sizes), strict=True)}
    if linear.bias is not None:
        targets |= {f"{name}.bias": part for name, part in zip(names, torch.split(linear.bias, sizes), strict=True)}
    return targets
